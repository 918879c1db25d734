"""Read the state or the weights of a run that has been saved."""

import dataclasses
import os
from pathlib import Path
from typing import Any

import jax

from pmapdp.config import flag
from pmapdp.errors import UserError, explain_errors
from pmapdp.exported_file import read_exported_file
from pmapdp.run.checkpoints import Checkpoints
from pmapdp.run.same_run import (
    BUILT_IN,
    Provenance,
    fixed_settings,
    read_provenance,
)
from pmapdp.run.workdir import read_config
from pmapdp.state import Task, TrainState, named_leaves, use_host


def load_state(
    path: str | Path,
    task: Task,
    *,
    best: bool,
    data_fingerprint: str | None = None,
) -> tuple[TrainState, dict[str, Any]]:
    """Read the newest state of a run to the host, or its best epoch's.

    Returns:
        The state, and the results of the last epoch that had ended, or {}.

    Raises:
        UserError: The state is of another run, or of data with another fingerprint.
    """
    # Nothing is trained, so learning rates and code don't matter.
    settings = fixed_settings(read_config(path), data_fingerprint)
    checkpoints = open_checkpoints(path, Provenance(settings, {}, {}))
    step = checkpoints.saved_steps()[-1]
    if best:
        step = checkpoints.read_progress(step)["best"].get("step")
        if step not in checkpoints.saved_steps():
            raise UserError(
                f"{path} holds no checkpoint of its best epoch: leave --best out"
            )
    # One accelerator may be too small for a state that was split over several.
    with use_host():
        state, progress = checkpoints.read(step, task)
    return jax.device_get(state), progress["last"]


def open_checkpoints(
    path: str | Path, provenance: Provenance | None = None
) -> Checkpoints:
    """Open the checkpoints in the folder of a run, to read them.

    A `UserError` says that there are none.
    """
    folder = Path(path) / "checkpoints"
    provenance = provenance or Provenance({}, {}, {})
    checkpoints = Checkpoints(folder, provenance, read_only=True)
    if not checkpoints.saved_steps():
        raise UserError(
            f"{path} holds no checkpoint yet: let the training run finish an epoch "
            "first"
        )
    return checkpoints


def functions_from_python(path: str) -> list[str]:
    """Return which of loss and metrics a run was given from Python.

    The settings don't name them, but the checkpoint has their hashes. Without them the
    cross-entropy would be shown as the run's loss.
    """
    checkpoints = open_checkpoints(path)
    progress = checkpoints.read_progress(checkpoints.saved_steps()[-1])
    code = read_provenance(progress).code
    return [
        name for name in ("loss", "metrics") if code.get(name, BUILT_IN) != BUILT_IN
    ]


def load_weights(task: Task, path: str) -> tuple[Task, str]:
    """Put the weights of a run or an exported file into a task's model.

    An array is taken if the model has one of its name and shape. The others stay as the
    seed made them.

    Returns:
        The task, and a line that says what was taken.
    """
    advice = "name the --workdir of a run, or a file of python -m pmapdp.export"
    if os.path.isdir(path):
        read_config(path)  # refuses a folder without a run
        checkpoints = open_checkpoints(path)
        step = checkpoints.saved_steps()[-1]
        with explain_errors(f"the checkpoint in {path} cannot be read", advice):
            saved = checkpoints.read_weights(step)
    else:
        exported = read_exported_file(path, advice=advice)  # its program isn't run
        step = exported.metadata.get("step", 0)
        saved = {}
        for name, array in exported.arrays.items():
            saved[name.replace("/", ".")] = array
    arrays = task.split_arrays(task.model)
    leaves = []
    missing = []
    for name, array in named_leaves(*arrays).items():
        if name in saved and saved[name].shape == array.shape:
            # Weights of a float64 run may start one of float32.
            leaves.append(saved[name].astype(array.dtype))
        else:
            leaves.append(array)
            missing.append(name)
    count = len(leaves) - len(missing)
    # The name of another model's folder is a common mistake.
    if not count:
        raise UserError(
            f"{flag('init_from', path)} has no array of {task.name}, for example no "
            f"{min(missing)}: {advice}"
        )
    model = task.merge_arrays(*jax.tree.unflatten(jax.tree.structure(arrays), leaves))
    message = f"starts from {count} arrays of {path}, which had made {step:,} updates"
    if missing:
        message += f"; as the seed makes them: {', '.join(missing)}"
    return dataclasses.replace(task, model=model), message
