"""The files that a run appends to as it goes: its log, and the metrics as JSON lines."""

import json
import os
from pathlib import Path
from typing import Any

from pmapdp.files import FAULTS, WRITE_ADVICE, open_regular, refusal

FULL_ADVICE = "make room and start the command again"


class LinesFile:
    """A text file to which whole lines are appended, each of them at once, so that a killed run leaves whole lines.

    Half a line at its end, from a machine that lost power or a disk that was full, is ended first.

    Args:
        path: made if it is missing.
        named: how the user names it, for example `--metrics-file metrics.jsonl`; default: the path.

    Raises:
        UserError: it cannot be written, or is no regular file (a FIFO would wait for a reader).
    """

    def __init__(self, path: str | Path, named: str | None = None):
        self.named = named or str(path)

        try:
            # Without a buffer nothing is left to write, and to fail a second time, when the file is closed.
            descriptor = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            self.file = open(descriptor, "ab+", buffering=0)  # noqa: SIM115 (lives as long as the run)
            end = os.fstat(descriptor).st_size
            if end and os.pread(descriptor, 1, end - 1) != b"\n":
                self.file.write(b"\n")
        except FAULTS as error:
            raise refusal(self.named, "written", error, WRITE_ADVICE) from None

    def line(self, text: str) -> None:
        """Append one line.

        Raises:
            UserError: it cannot be written.
        """
        left = (text + "\n").encode("utf-8", "backslashreplace")
        try:
            while left:
                left = left[self.file.write(left) :]
        except OSError as error:
            raise refusal(self.named, "written", error, FULL_ADVICE) from None

    def event(self, event: str, **values: Any) -> None:
        """Append one line `{"event": event, ...}`."""
        self.line(json.dumps({"event": event, **values}))

    def close(self) -> None:
        """Close the file when the disk has all lines; errors as of `line`."""
        try:
            with self.file:
                os.fsync(self.file.fileno())
        except OSError as error:
            raise refusal(self.named, "written", error, FULL_ADVICE) from None
