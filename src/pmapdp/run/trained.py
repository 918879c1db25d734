"""A run read back from its folder: for evaluation, export and the lessons."""

import dataclasses
from pathlib import Path
from typing import Any

import jax

from pmapdp.config import Config, check
from pmapdp.errors import UserError
from pmapdp.job import make_task
from pmapdp.run.checkpoint import load_state
from pmapdp.run.workdir import read_settings
from pmapdp.state import TrainState


def read_config(path: str | Path) -> Config:
    """The configuration of the run in a folder, its batch size given as the global one.

    Raises:
        UserError: there is no run in it, or its config.json is not as a run writes it.
    """
    settings, global_batch_size = read_settings(path)
    settings |= {"global_batch_size": global_batch_size, "per_device_batch_size": None}
    known: dict[str, Any] = {}
    for field in dataclasses.fields(Config):
        value = settings[field.name]
        known[field.name] = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
    config = Config(**known)
    try:
        check(config)
    except UserError as error:
        raise UserError(
            f"{Path(path) / 'config.json'} is not as a run writes it, name another folder: {error}"
        ) from None
    return config


def load_run(path: str | Path, model: Any = None) -> tuple[Config, TrainState, dict[str, Any]]:
    """Configuration, newest state (on the host) and the metrics of its last epoch of the run in a folder.

    Args:
        path: the folder.
        model: what was given to `train` as its model; None where the configuration names one.

    Raises:
        UserError: there is no run or no checkpoint in it.
    """
    config = read_config(path)
    with jax.enable_x64(config.dtype == "float64"):
        # The learning rates do not matter here: they are not part of the state.
        state, progress = load_state(path, make_task(config, model))
    return config, state, progress["last"]
