"""A run read back from its folder: for evaluation, export and the lessons."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from pmapdp.config import Config
from pmapdp.job import make_task
from pmapdp.optimizer import make_optimizer
from pmapdp.registry import find_rule
from pmapdp.run.checkpoint import load_state
from pmapdp.run.workdir import read_run
from pmapdp.state import Task, TrainState


def read_config(path: str | Path) -> Config:
    """The configuration of the run in a folder, its batch size given as the global one; errors as of `read_run`."""
    config, global_batch_size = read_run(path)
    return dataclasses.replace(config, global_batch_size=global_batch_size, per_device_batch_size=None)


def trained_task(config: Config, *, optimizer: Any = None, **own: Any) -> Task:
    """What a run of `config` trains, `own` as for `make_task`. The learning rates do not matter here: they are not part
    of the state."""
    rule = find_rule("optimizer", config.optimizer) if optimizer is None else optimizer
    return dataclasses.replace(make_task(config, **own), optimizer=make_optimizer(config, lambda step: 0.0, rule))


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
