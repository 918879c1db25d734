"""A run read back from its folder: for evaluation, export and the lessons."""

import typing
from pathlib import Path
from typing import Any

import jax

from pmapdp.config import Config, check
from pmapdp.errors import UserError
from pmapdp.forms import mismatch
from pmapdp.job import make_task
from pmapdp.registry import DATA_SETS, MODELS
from pmapdp.run.checkpoint import load_state
from pmapdp.run.workdir import read_settings
from pmapdp.state import TrainState


def read_config(path: str | Path) -> Config:
    """The configuration of the run in a folder, its batch size given as the global one.

    Raises:
        UserError: there is no run in it, or its config.json is not as a run writes it.
    """
    settings, global_batch_size = read_settings(path)
    wrong = mismatch(settings, typing.get_type_hints(Config), "")
    if wrong:
        raise UserError(f"{Path(path) / 'config.json'} {wrong}: it is not as a run writes it, so name another folder")
    batch_size = {"global_batch_size": global_batch_size, "per_device_batch_size": None}
    config = Config.from_json(settings | batch_size)
    check(config)
    return config


def require_named(path: str | Path, config: Config, *, model: Any = None, data: Any = None, **_: Any) -> None:
    """Refuse a run whose model or data was a Python value, where none is given in its place.

    Raises:
        UserError: with the functions that take them.
    """
    for kind, name, given, names, file in (
        ("model", config.model, model, MODELS, ".py:"),
        ("data", config.dataset, data, DATA_SETS, ".npz"),
    ):
        if given is None and name not in names and file not in name:
            raise UserError(
                f"{path} was trained with a Python value as its {kind}, {name}, which no command can find: call "
                f"pmapdp.evaluate.from_workdir or pmapdp.export.write.from_workdir with {kind}=... from Python"
            )


def load_run(path: str | Path, model: Any = None) -> tuple[Config, TrainState, dict[str, Any]]:
    """Configuration, newest state (on the host) and the metrics of its last epoch of the run in a folder.

    Args:
        path: the folder.
        model: what was given to `train` as its model; None where the configuration names one.

    Raises:
        UserError: there is no run or no checkpoint in it.
    """
    config = read_config(path)
    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    # The learning rates do not matter here: they are not part of the state.
    state, progress = load_state(path, make_task(config, model))
    return config, state, progress["last"]
