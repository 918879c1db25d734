"""Compare a run with the one that wrote a checkpoint.

Only the same run may go on from it, because with other settings, data or functions
nobody could say what the results belong to.
"""

import dataclasses
import json
import os
from typing import Any

import jax
import numpy as np

from pmapdp.config import Config
from pmapdp.errors import UserError
from pmapdp.job import Job
from pmapdp.optimizer import OPTIMIZERS, SCHEDULES
from pmapdp.run.code_hash import hash_function
from pmapdp.state import use_host

CODE_PREFIX = "the code of the "  # begins the keys of code hashes


def fixed_settings(
    config: Config, data_fingerprint: str | None = None
) -> dict[str, Any]:
    """Return the settings on which a run's results depend, with lists for tuples.

    Folders of your code and data don't count, because you may move them. Names of your
    optimizer and schedule don't count either: `hash_functions` compares their code.
    """
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.metadata["fixed_on_resume"]:
            settings[field.name] = getattr(config, field.name)
    # What's in them is compared, by the content of the data and the code's hash.
    for name in ("dataset", "model"):
        settings[name] = os.path.basename(settings[name])
    if settings["optimizer"] not in OPTIMIZERS:
        settings["optimizer"] = "yours"
    if settings["schedule"] not in SCHEDULES:
        settings["schedule"] = "yours"
    if data_fingerprint:
        settings["the content of the data"] = data_fingerprint
    return json.loads(json.dumps(settings))  # tuples become lists, as they come back


def hash_functions(job: Job) -> dict[str, Any]:
    """Return hashes of the run's functions, and samples of its learning rate.

    A function keeps its name if you edit it, so names wouldn't show the change.

    - The learning rates at 64 even points of the run.
    - A hash of the code of each of your functions and of the values that it holds.
    """
    last = job.config.epochs * job.batches["train"].per_epoch
    # On the host, so that another machine finds the same.
    with use_host(), jax.transfer_guard("allow"):
        steps = np.linspace(0, last, 64).astype(int)
        rates = np.asarray(jax.vmap(job.schedule)(steps), float)
    values: dict[str, Any] = {}
    for step, rate in zip(steps, rates, strict=True):
        values[f"the schedule after {step} updates"] = float(f"{rate:.6g}")
    functions = {"augmentation": job.task.augment}
    for name in ("model", "loss", "metrics", "optimizer", "schedule"):
        functions[name] = getattr(job.custom, name)
    for name, function in functions.items():
        is_yours = function is not None
        values[CODE_PREFIX + name] = hash_function(function) if is_yours else "built in"
    return values


def require_same_run(
    checkpoint: str,
    saved: dict[str, Any],
    requested: dict[str, Any],
    *,
    ended: bool = False,
    accept_changed_functions: bool = False,
) -> None:
    """Refuse a checkpoint of another run.

    Args:
        checkpoint: The checkpoint's name in the error message.
        saved: The fixed settings of the checkpoint.
        requested: The fixed settings of the run that would go on from it.
        ended: True if that run has made all its epochs. Then it may get more of them.
        accept_changed_functions: True if the code of your functions may differ.
    """
    # More epochs stretch a schedule, so then it's compared by its code alone.
    is_extended = ended and requested["epochs"] > saved["epochs"]
    may_differ = ("epochs", "the schedule") if is_extended else ()
    different = find_differences(saved, requested, may_differ)
    if different:
        raise UserError(
            f"{checkpoint} is of another configuration, which differs in "
            f"{', '.join(different[:3])}: use the same or another folder (there "
            "--init-from starts from its weights), or delete that run yourself"
        )
    if not accept_changed_functions:
        require_same_code(checkpoint, saved, requested)


def find_differences(
    saved: dict[str, Any], requested: dict[str, Any], may_differ: tuple[str, ...]
) -> list[str]:
    """List the settings that differ, with both values.

    Code isn't compared, nor is a setting that begins with a text of `may_differ`.
    """
    different: list[str] = []
    for name, value in requested.items():
        if name.startswith((CODE_PREFIX, *may_differ)):
            continue
        # A checkpoint of an older version may lack a setting.
        saved_value = saved.get(name, value)
        is_rate = name.startswith("the schedule")
        # A difference that was listed explains the rates, so one line is enough.
        if is_rate and different:
            continue
        # Another machine may round a rate in another way.
        if is_rate and np.isclose(saved_value, value, rtol=1e-4, atol=1e-9):
            continue
        if value != saved_value:
            different.append(f"{name} ({saved_value!r} there, {value!r} now)")
    return different


def require_same_code(
    checkpoint: str, saved: dict[str, Any], requested: dict[str, Any]
) -> None:
    """Refuse a checkpoint that was made with other functions of yours.

    A checkpoint of pmapdp 0.3 has no hashes, so it isn't refused.
    """
    for name in requested:
        if not name.startswith(CODE_PREFIX) or name not in saved:
            continue
        function = f"your {name.removeprefix(CODE_PREFIX)}"
        if requested[name] is None:
            raise UserError(
                f"{function} holds a value that can't be compared with the one of "
                f"{checkpoint}: if it's the same, add --accept-changed-functions"
            )
        if requested[name] != saved[name]:
            raise UserError(
                f"the code of {function}, or a value that it holds, isn't what "
                f"{checkpoint} was made with: undo the change, or add "
                "--accept-changed-functions to go on with it"
            )
