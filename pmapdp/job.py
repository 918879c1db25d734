"""All parts of a run, which the loop in `train.py` and the files of `run/` share."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from pmapdp.config import Config
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import DataSet
from pmapdp.distributed import Processes
from pmapdp.sharding.layout import MeshLayout
from pmapdp.state import Task
from pmapdp.steps.shared import Strategy


@dataclass(frozen=True)
class Job:
    """All parts of a run before its first update.

    Attributes:
        config: With the global batch size, and the names of your own parts.
        devices: The devices of all processes.
        data: The data set, its texts turned into arrays.
        task: Model, loss and optimizer.
        batches: The batches of "train", and of "test" and "validation" if there are
            such parts.
        total_steps: The most updates that the run makes.
        schedule: (updates made) -> learning rate.
        strategy: Its functions are in `steps/` or `sharding/`.
        layout: Which shard of every array each device holds.
        processes: The processes that own the devices.
        data_fingerprint: Tells data sets apart. None without a workdir and with one
            process.
        functions: Your functions by what they are. None: the built-in one is used.
    """

    config: Config
    devices: list[jax.Device]
    data: DataSet
    task: Task
    batches: dict[str, Batches]
    total_steps: int
    schedule: Callable[[Any], Any]
    strategy: Strategy
    layout: MeshLayout
    processes: Processes
    data_fingerprint: str | None
    functions: dict[str, Any]

    @property
    def evaluated_part(self) -> str | None:
        """Return the part to evaluate after each epoch.

        It's "validation", else "test", else None.
        """
        for part in ("validation", "test"):
            if part in self.batches:
                return part
        return None
