"""Event files for TensorBoard."""

import os
import time
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from pmapdp.files import WRITE_ADVICE, file_errors
from pmapdp.run.log import FULL_ADVICE

# Of the results of an epoch, those that are no figure of TensorBoard's.
LEFT_OUT = ("epoch", "step", "train_examples", "test_examples", "validation_examples", "step_ms")


class TensorBoard:
    """Writes results of epochs as they come, in this thread, so that a full disk is a `UserError` of the run."""

    def __init__(self, folder: Path):
        self.folder = folder
        with file_errors(folder, "written", WRITE_ADVICE):
            self.file = EventsWriter(str(folder.absolute() / "events"), f".{os.getpid()}")

    def epoch(self, results: dict[str, Any]) -> None:
        """Write an epoch's results (the keys of the metrics file)."""
        # TensorBoard groups them by what stands before a `/`.
        figures = {
            name.replace("_", "/", 1) if name.startswith(("train_", "test_", "validation_")) else name: value
            for name, value in results.items()
            if name not in LEFT_OUT and value is not None
        }
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items()]
        with file_errors(self.folder, "written", FULL_ADVICE):
            self.file.write_event(Event(wall_time=time.time(), step=results["step"], summary=Summary(value=values)))
            self.file.flush()

    def close(self) -> None:
        """Write what is left."""
        with file_errors(self.folder, "written", FULL_ADVICE):
            self.file.close()
