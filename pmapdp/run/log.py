"""The files that a run appends to as it goes: its log, and the metrics as JSON lines."""

import json
import os
from pathlib import Path
from typing import Any

from pmapdp.files import WRITE_ADVICE, file_errors, open_regular

FULL_ADVICE = "make room and start the command again"


class LinesFile:
    """A text file to which whole lines are appended, each of them at once, so that a killed run leaves whole lines.

    Half a line at its end, from a machine that lost power, is ended first. Where the file cannot be written, or is no
    regular one, all methods raise a `UserError` that calls it `named` (default: its path).
    """

    def __init__(self, path: str | Path, named: str | None = None):
        self.named = named or str(path)
        with file_errors(self.named, "written", WRITE_ADVICE):
            # Without a buffer nothing is left to write, and to fail a second time, when the file is closed.
            descriptor = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            self.file = open(descriptor, "ab+", buffering=0)  # noqa: SIM115 (lives as long as the run)
            end = os.fstat(descriptor).st_size
            if end and os.pread(descriptor, 1, end - 1) != b"\n":
                self.file.write(b"\n")

    def line(self, text: str) -> None:
        """Append one line."""
        left = (text + "\n").encode("utf-8", "backslashreplace")
        with file_errors(self.named, "written", FULL_ADVICE):
            end = os.fstat(self.file.fileno()).st_size
            try:
                while left:
                    left = left[self.file.write(left) :]
            except OSError:
                self.file.truncate(end)
                raise

    def event(self, event: str, **values: Any) -> None:
        """Append one line `{"event": event, ...}`."""
        self.line(json.dumps({"event": event, **values}))

    def close(self) -> None:
        """Close the file when the disk has all lines."""
        with file_errors(self.named, "written", FULL_ADVICE), self.file:
            os.fsync(self.file.fileno())
