"""Event files for TensorBoard."""

import os
import time
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.summary_pb2 import Summary

from pmapdp.files.reading import saying
from pmapdp.files.writing import WRITE_ADVICE
from pmapdp.run.log import FULL_ADVICE

# Their names in the metrics file have `_` where TensorBoard's have `/`, by which it groups them.
SCALARS = ("train/loss", "train/accuracy", "test/loss", "test/accuracy", "learning_rate", "examples_per_second")


class TensorBoard:
    """Writes results of epochs as they come, in this thread, so that a full disk is a `UserError` of the run."""

    def __init__(self, folder: Path):
        self.folder = folder
        with saying(folder, "written", WRITE_ADVICE):
            self.file = EventsWriter(str(folder.absolute() / "events"), f".{os.getpid()}")

    def epoch(self, results: dict[str, Any]) -> None:
        """Write an epoch's results (the keys of the metrics file)."""
        figures = {tag: results[tag.replace("/", "_")] for tag in SCALARS}
        values = [Summary.Value(tag=tag, simple_value=value) for tag, value in figures.items() if value is not None]
        with saying(self.folder, "written", FULL_ADVICE):
            self.file.write_event(Event(wall_time=time.time(), step=results["step"], summary=Summary(value=values)))
            self.file.flush()

    def close(self) -> None:
        """Write what is left."""
        with saying(self.folder, "written", FULL_ADVICE):
            self.file.close()
