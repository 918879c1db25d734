"""Event files for TensorBoard, in the format and with the summaries of tensorboardX."""

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

from pmapdp.files import saying
from pmapdp.run.log import FULL_ADVICE

SCALARS = {
    "train/loss": "train_loss",
    "train/accuracy": "train_accuracy",
    "test/loss": "test_loss",
    "test/accuracy": "test_accuracy",
    "learning_rate": "learning_rate",
    "examples_per_second": "examples_per_second",
}


class TensorBoard:
    """Writes results of epochs as they come, in this thread, so that a full disk is a `UserError` of the run. Events of
    its earlier starts after update `first_step` are hidden by TensorBoard."""

    def __init__(self, folder: Path, first_step: int):
        from tensorboardX import summary  # not needed without a workdir
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.record_writer import RecordWriter

        self.summary, self.make_event = summary, Event
        self.path = folder.absolute() / f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        with self.writing():
            self.file = RecordWriter(str(self.path))
            self.write(file_version="brain.Event:2")
            self.write(step=first_step + 1, session_log=SessionLog(status=SessionLog.START))

    def epoch(self, results: dict[str, Any]) -> None:
        """Write an epoch's results (the keys of the metrics file)."""
        with self.writing():
            for tag, key in SCALARS.items():
                if results[key] is not None:
                    self.write(step=results["step"], summary=self.summary.scalar(tag, results[key]))
            self.file.flush()

    def write(self, **fields: Any) -> None:
        """Append an event."""
        self.file.write(self.make_event(wall_time=time.time(), **fields).SerializeToString())

    def writing(self) -> contextlib.AbstractContextManager:
        """Says in one sentence that the disk takes no more."""
        return saying(self.path, "written", FULL_ADVICE)

    def close(self) -> None:
        """Write what is left."""
        with self.writing():
            self.file.close()
