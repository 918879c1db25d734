"""Event files for TensorBoard, in the format and with the summaries of tensorboardX."""

import contextlib
import os
import socket
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapdp.files import saying
from pmapdp.job import Job
from pmapdp.run.log import FULL_ADVICE
from pmapdp.state import TrainState
from pmapdp.steps.shared import Body

SCALARS = {
    "train/loss": "train_loss",
    "train/accuracy": "train_accuracy",
    "test/loss": "test_loss",
    "test/accuracy": "test_accuracy",
    "learning_rate": "learning_rate",
    "examples_per_second": "examples_per_second",
}
EDGES = 1e-12 * 1.1 ** np.arange(772)  # of the bins that TensorBoard's histograms have, up to 1e20
BINS = np.concatenate([-EDGES[::-1], [0], EDGES])


def arrays(job: Job, state: TrainState) -> dict[str, Any]:
    """The parameters in a placed state, and the gradients of the mean loss over the batch that comes next.

    The gradients are computed on one device. All processes must call this; the arrays are on the host.
    """
    whole = job.steps.fetch(state)
    batches = job.train_batches.for_one_device()
    batch = next(batches.epoch(*divmod(int(whole.step), batches.steps)))
    gradients, sums, _ = jax.device_get(jax.jit(Body(job.task).gradient_sums)(whole, batch))
    return {"parameters": whole.params, "gradients": jax.tree.map(lambda sum: sum / sums.count, gradients)}


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

    def epoch(self, results: dict[str, Any], arrays: dict[str, Any]) -> None:
        """Write an epoch's results (the keys of the metrics file), and a histogram of each leaf of `arrays`."""
        with self.writing():
            for tag, key in SCALARS.items():
                if results[key] is not None:
                    self.write(step=results["step"], summary=self.summary.scalar(tag, results[key]))
            for path, leaf in jax.tree_util.tree_leaves_with_path(arrays):
                tag, values = "/".join(str(entry.key) for entry in path), np.asarray(leaf, np.float32)
                self.write(step=results["step"], summary=self.summary.histogram(tag, values, BINS))
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
