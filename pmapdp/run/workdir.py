"""Open the folder of a run, which belongs to one configuration and one process.

config.json       what the run does
checkpoints/      the newest states, and the best epoch's
metrics.jsonl     results, one JSON object a line
log.txt           what was printed
events.out.*      for `tensorboard --logdir DIR`
profile/          a trace, with --profile
pmapdp.lock       held by the running process; the system releases it when that ends
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapdp.config import Config, config_from_json
from pmapdp.errors import UserError, explain_errors
from pmapdp.files import (
    RESULTS_SIGNATURES,
    check_output,
    open_file,
    open_regular,
    write_file,
)
from pmapdp.job import Job
from pmapdp.optimizer import OPTIMIZERS, SCHEDULES
from pmapdp.registry import DATA_SETS
from pmapdp.run.code_hash import hash_function
from pmapdp.state import use_host

FORMAT = "pmapdp run 2"
CODE_PREFIX = "the code of the "  # starts the name of a hash in the fixed settings
WORKDIR_ADVICE = "name a --workdir of yours with free space, for example runs/first"


def with_full_paths(config: Config, *, is_first: bool = True) -> Config:
    """Make all paths absolute, because your code may change the current folder.

    If `is_first`, check that the metrics file can be written.
    """
    folders = ("workdir", "data_dir", "metrics_file", "init_from")
    code = ("dataset", "model", "optimizer", "schedule")
    names = [name for name in folders if getattr(config, name)]
    names += [name for name in code if ".py:" in getattr(config, name)]
    is_folder = config.dataset not in DATA_SETS and os.path.isdir(config.dataset)
    if config.dataset.endswith(".npz") or is_folder:
        names.append("dataset")
    paths = {}
    for name in names:
        # A shell leaves --workdir=~/runs as it is.
        paths[name] = os.path.expanduser(getattr(config, name))
    if is_first:
        check_output("--metrics-file", paths.get("metrics_file"), RESULTS_SIGNATURES)
    full = {name: os.path.abspath(path) for name, path in paths.items()}
    return dataclasses.replace(config, **full)


def fixed_settings(
    config: Config, data_fingerprint: str | None = None
) -> dict[str, Any]:
    """Return the settings on which a run's results depend, as JSON gives them back.

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
    functions = job.parts._asdict() | {"augmentation": job.task.augment}
    for name, function in functions.items():
        # Data are compared by their content, and the names of what is trained.
        if name in ("data", "trainable"):
            continue
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
        checkpoint: What it's called in the message.
        saved: Its fixed settings.
        requested: Those of the run that would go on from it.
        ended: Its run has made all its epochs, and may be given more.
        accept_changed_functions: The code of your functions may differ.
    """
    # With more epochs, a schedule is compared by its code alone.
    is_extended = ended and requested["epochs"] > saved["epochs"]
    may_differ = ("epochs", "the schedule") if is_extended else ()
    different = []
    for name, value in requested.items():
        if name.startswith((CODE_PREFIX, *may_differ)):
            continue
        # A checkpoint of an older version may lack a setting.
        saved_value = saved.get(name, value)
        # Another machine may round a learning rate in another way.
        is_rate = name.startswith("the schedule")
        if is_rate and np.isclose(saved_value, value, rtol=1e-4, atol=1e-9):
            continue
        if value != saved_value:
            different.append(f"{name} ({saved_value!r} there, {value!r} now)")
    if different:
        raise UserError(
            f"{checkpoint} is of another configuration, which differs in "
            f"{', '.join(different[:3])}: use the same or another folder (there "
            "--init-from starts from its weights), or delete that run yourself"
        )
    if not accept_changed_functions:
        require_same_code(checkpoint, saved, requested)


def require_same_code(
    checkpoint: str, saved: dict[str, Any], requested: dict[str, Any]
) -> None:
    """Refuse a checkpoint that was made with other functions of yours.

    One of 0.3 has no hashes.
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


@contextlib.contextmanager
def lock_workdir(path: str) -> Iterator[None]:
    """Keep the folder of a run for this process, and make it if it's missing.

    A `UserError` says why it can't.
    """
    folder = Path(path)
    with explain_errors(f"--workdir {path} cannot be written", WORKDIR_ADVICE):
        if "\\" in path:
            raise ValueError("TensorStore takes its backslash for a slash")
        folder.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(folder / "config.json"):
            read_config(folder)  # refuses one that isn't ours
        else:
            require_empty(folder)
        descriptor = open_regular(folder / "pmapdp.lock", os.O_RDWR | os.O_CREAT)
    with open(descriptor, "r+") as lock:
        try:
            # Held as long as the file is open.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(
                f"--workdir {path} is in use by process {lock.read(99)}: wait until "
                "that run has ended, or name another folder"
            ) from None
        # Whoever is refused can read who has it.
        lock.truncate(0)
        os.write(lock.fileno(), f"{os.getpid()} on {socket.gethostname()}".encode())
        yield


def require_empty(folder: Path) -> None:
    """Refuse a folder with files like a run's, which no run of ours has written."""
    for pattern in ("metrics.jsonl", "log.txt", "checkpoints/[0-9]*"):
        for foreign in folder.glob(pattern):
            raise UserError(
                f"--workdir {folder} holds {foreign.relative_to(folder)}, and no "
                "config.json says that a run of pmapdp wrote it: name a new folder, "
                "for example runs/first"
            )


def write_config(config: Config, folder: str) -> None:
    """Write the configuration of a run to its folder."""
    text = json.dumps({"format": FORMAT, "config": vars(config)}, indent=2)
    write_file(Path(folder) / "config.json", f"{text}\n", advice=WORKDIR_ADVICE)


def read_config(path: str | Path) -> Config:
    """Read the configuration of the run in a folder."""
    file = Path(path) / "config.json"
    if not os.path.lexists(file):
        raise UserError(
            f"{path} holds no run (no config.json): name the --workdir of a training "
            "run"
        )
    with open_file(file, advice="name another folder") as opened:
        stored = json.load(opened)
    if not isinstance(stored, dict) or stored.get("format") != FORMAT:
        raise UserError(
            f"{file} is not from this version: "
            "name another folder, or use pmapdp 0.2 if that wrote it"
        )
    advice = "correct it, or name another folder"
    try:
        return config_from_json(dict(stored["config"]))
    except UserError as error:
        raise UserError(f"{file} cannot be used ({error.message}): {advice}") from None
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{file} holds no settings: {advice}") from None
