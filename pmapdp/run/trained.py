"""A run read back from its folder: for evaluation, export and the lessons."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from pmapdp.config import Config
from pmapdp.custom.training import check_optimizer
from pmapdp.errors import UserError, require
from pmapdp.job import make_task
from pmapdp.optimizer import make_optimizer
from pmapdp.registry import find_rule
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.damage import DamagedError
from pmapdp.run.workdir import identity, read_run
from pmapdp.state import Task, TrainState


def read_config(path: str | Path) -> Config:
    """The configuration of the run in a folder, its batch size given as the global one; errors as of `read_run`."""
    config, global_batch_size = read_run(path)
    return dataclasses.replace(config, global_batch_size=global_batch_size, per_device_batch_size=None)


def trained_task(config: Config, *, optimizer: Any = None, **own: Any) -> Task:
    """What a run of `config` trains, `own` as for `make_task`. The learning rates do not matter here: they are not part
    of the state."""
    rule, task = find_rule("optimizer", config.optimizer) if optimizer is None else optimizer, make_task(config, **own)
    if rule is not None:
        check_optimizer(rule, zero, task)
    return dataclasses.replace(task, optimizer=make_optimizer(config, zero, rule))


def zero(step: Any) -> float:
    """A schedule whose learning rate is 0."""
    return 0.0


def open_to_read(path: str | Path) -> Checkpoints:
    """The checkpoints in the folder of a run. A `UserError` says that there are none."""
    belongs_to, folder = identity(*read_run(path)), Path(path) / "checkpoints"
    if not folder.is_dir():
        raise UserError(f"{path} holds no checkpoint yet: let the training run finish an epoch first")
    return Checkpoints(folder, only_read=True, belongs_to=belongs_to)


def load_state(path: str | Path, task: Task, *, best: bool = False) -> tuple[TrainState, dict[str, Any]]:
    """The newest intact checkpoint in the folder of a run of `task`, or that of its `best` epoch: state on the host,
    and its progress. A `UserError` says that there is none, or that its config.json or the model is not that of the
    checkpoint."""
    require(bool, "best", best, "True or False")
    checkpoints = open_to_read(path)
    for found in checkpoints.newest_first(task):
        if not best:
            return found.state, found.progress
        if (step := found.progress["best"].get("step")) not in checkpoints.steps():
            raise UserError(f"{path} no longer holds the checkpoint of its best epoch: leave --best out")
        try:
            found = checkpoints.read(step, task)
        except DamagedError as damage:
            raise UserError(
                f"the checkpoint of the best epoch in {path} is damaged ({damage}): leave --best out"
            ) from None
        return found.state, found.progress
    raise UserError(f"{path} holds no intact checkpoint: let the training run finish an epoch first")


def load_run(path: str | Path, **own: Any) -> tuple[Config, TrainState, dict[str, Any]]:
    """Configuration, newest state (on the host) and the metrics of its last epoch of the run in a folder.

    Args:
        path: the folder.
        own: `model`, `loss`, `metrics` and `optimizer` where `train` was given them as Python values.

    Raises:
        UserError: there is no run or no checkpoint in it.
    """
    config = read_config(path)
    with jax.enable_x64(config.dtype == "float64"):
        state, progress = load_state(path, trained_task(config, **own))
    return config, state, progress["last"]
