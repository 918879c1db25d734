"""Compare a run with the one that wrote a checkpoint.

Only the same run may go on from it, because with other settings, data or functions
nobody could say what the results belong to.
"""

import dataclasses
import json
import os
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.config import SCHEDULES, Config, find_unused
from pmapdp.errors import UserError
from pmapdp.job import Job
from pmapdp.optimizer import OPTIMIZERS
from pmapdp.run.code_hash import hash_function
from pmapdp.state import use_host

BUILT_IN = "built in"  # in place of the hash of a function that isn't yours


class Provenance(NamedTuple):
    """A resumed run must have the same provenance: settings, rates and code.

    Attributes:
        settings: The settings that a resumed run can't change, and the fingerprint of
            the data.
        rates: The learning rate at 64 even points of the run, by the updates made.
        code: A hash of each function that may be yours, such as "loss". None: it holds
            a value that can't be hashed.
    """

    settings: dict[str, Any]
    rates: dict[str, float]
    code: dict[str, str | None]


def read_provenance(progress: dict[str, Any]) -> Provenance:
    """Return the provenance of a checkpoint, from what it holds beside the state."""
    saved = progress["belongs_to"]
    if "settings" not in saved:  # in a checkpoint of 0.3 they are all there is
        return Provenance(saved, {}, {})
    return Provenance(**saved)


def find_provenance(job: Job) -> Provenance:
    """Return the settings, rates and code hashes that a resumed run must match."""
    last = job.config.epochs * job.batches["train"].per_epoch
    steps = np.linspace(0, last, 64).astype(int)
    # On the host, so that another machine finds the same.
    with use_host(), jax.transfer_guard("allow"):
        rates = np.asarray(jax.vmap(job.schedule)(steps), float)
    samples = zip(steps, rates, strict=True)
    functions = {"augmentation": job.task.augment}
    for name in ("model", "loss", "metrics", "optimizer", "schedule"):
        functions[name] = getattr(job.custom, name)
    # A function keeps its name if you edit it, so names wouldn't show the change.
    hashes: dict[str, str | None] = {}
    for name, function in functions.items():
        hashes[name] = BUILT_IN
        if function is not None:
            hashes[name] = hash_function(function)
    return Provenance(
        settings=fixed_settings(job.config, job.data_fingerprint),
        rates={str(step): float(f"{rate:.6g}") for step, rate in samples},
        code=hashes,
    )


def fixed_settings(
    config: Config, data_fingerprint: str | None = None
) -> dict[str, Any]:
    """Return the settings on which a run's results depend, with lists for tuples.

    Folders of your code and data don't count, because you may move them. Names of your
    optimizer and schedule don't count either, because their code is compared.
    """
    settings: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        if field.metadata["fixed_on_resume"]:
            settings[field.name] = getattr(config, field.name)
    # A setting without effect can't change a result, and 0.3 took any value of it.
    for name in find_unused(config):
        del settings[name]
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


def require_same_run(
    checkpoint: str,
    progress: dict[str, Any],
    requested: Provenance,
    shapes: dict[str, list[int]],
    *,
    accept_changed_functions: bool = False,
) -> None:
    """Refuse a checkpoint of another run.

    Args:
        checkpoint: The checkpoint's name in the error message.
        progress: What it holds beside the state.
        requested: The provenance of the run that would go on from it.
        shapes: The shapes of that run's arrays by name.
        accept_changed_functions: True if the code of your functions may differ.
    """
    saved = read_provenance(progress)
    # A run that has made all its epochs may get more of them. It has no open sums.
    last_epoch = progress["last"].get("epoch")
    has_ended = last_epoch == saved.settings["epochs"] and not progress["examples"]
    if has_ended and requested.settings["epochs"] > last_epoch:
        settings = saved.settings | {"epochs": requested.settings["epochs"]}
        # More epochs stretch a schedule, so it's compared by its code alone.
        saved = saved._replace(settings=settings, rates={})
    differences = find_differences(saved, requested, progress["shapes"], shapes)
    if differences:
        raise UserError(
            f"{checkpoint} is of another configuration, which differs in "
            f"{', '.join(differences[:3])}: use the same or another folder (there "
            "--init-from starts from its weights), or delete that run yourself"
        )
    if not accept_changed_functions:
        require_same_code(checkpoint, saved, requested)


def find_differences(
    saved: Provenance,
    requested: Provenance,
    saved_shapes: dict[str, list[int]],
    shapes: dict[str, list[int]],
) -> list[str]:
    """List settings, shapes or rates that differ, with both values."""
    differences = []
    for name, value in requested.settings.items():
        saved_value = saved.settings.get(name, value)  # 0.3 had fewer
        if value != saved_value:
            differences.append(f"{name} ({saved_value!r} there, {value!r} now)")
    for name in saved_shapes | shapes:
        saved_shape = saved_shapes.get(name)
        shape = shapes.get(name)
        if shape != saved_shape:
            differences.append(
                f"the shape of {name} ({saved_shape!r} there, {shape!r} now)"
            )
    if differences:
        return differences  # they explain the rates, too
    for step, rate in requested.rates.items():
        saved_rate = saved.rates.get(step, rate)
        # Another machine may round a rate in another way.
        if not np.isclose(saved_rate, rate, rtol=1e-4, atol=1e-9):
            name = f"the schedule after {step} updates"
            return [f"{name} ({saved_rate!r} there, {rate!r} now)"]
    return []


def require_same_code(
    checkpoint: str, saved: Provenance, requested: Provenance
) -> None:
    """Refuse a checkpoint that was made with other functions of yours."""
    for name, code in requested.code.items():
        if code is None:
            raise UserError(
                f"your {name} holds a value that can't be compared with the one of "
                f"{checkpoint}: if it's the same, add --accept-changed-functions"
            )
        if code != saved.code.get(name, code):  # 0.3 kept no hashes
            raise UserError(
                f"the code of your {name}, or a value that it holds, isn't what "
                f"{checkpoint} was made with, or another version of Python wrote it: "
                "undo the change, or add --accept-changed-functions to go on with it"
            )
