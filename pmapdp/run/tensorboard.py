"""Event files for TensorBoard, written with tensorboardX."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapdp.job import Job
from pmapdp.state import TrainState
from pmapdp.steps.shared import Body

SCALARS = {
    "train/loss": "train_loss",
    "train/accuracy": "train_accuracy",
    "test/loss": "test_loss",
    "test/accuracy": "test_accuracy",
    "learning_rate": "learning_rate",
    "images_per_second": "images_per_second",
}


class TensorBoard:
    """Writes results of epochs as they come.

    Args:
        folder: where the event files go.
        first_step: events of an earlier start of the run after this update are hidden by TensorBoard.
    """

    def __init__(self, folder: Path, first_step: int):
        from tensorboardX import SummaryWriter  # not needed without a workdir

        self.writer = SummaryWriter(str(folder), purge_step=first_step + 1)

    def scalars(self, results: dict[str, Any]) -> None:
        """Write an epoch's results (the keys of the metrics file) at its update."""
        for tag, key in SCALARS.items():
            if results[key] is not None:
                self.writer.add_scalar(tag, results[key], results["step"])
        self.writer.flush()

    def histograms(self, job: Job, state: TrainState) -> None:
        """Write histograms of the parameters and of the gradients.

        The gradients are those of the mean loss over the batch that comes next, computed on one device.
        """
        step = int(state.step)
        batches = job.train_batches.for_one_device()
        batch = next(batches.epoch(*divmod(step, batches.steps)))
        gradients, sums, _ = jax.device_get(jax.jit(Body(job.task).gradient_sums)(state, batch))
        gradients = jax.tree.map(lambda gradient: gradient / sums.count, gradients)
        for kind, tree in (("parameters", state.params), ("gradients", gradients)):
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
                name = "/".join(str(entry.key) for entry in path)
                self.writer.add_histogram(f"{kind}/{name}", np.asarray(leaf, np.float32), step)
        self.writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self.writer.close()
