"""Open the folder of a run, which belongs to one configuration and one process.

    config.json       what the run does
    checkpoints/      the newest states, and the best epoch's
    metrics.jsonl     results, one JSON object a line
    log.txt           what was printed
    events.out.*      for `tensorboard --logdir DIR`
    profile/          a trace, with --profile
    pmapdp.lock       held by the running process; the system releases it when that ends

Lesson 14 teaches what must be in it.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from pmapdp.config import Config, config_from_json, flag
from pmapdp.errors import UserError, explain_errors
from pmapdp.files import (
    RESULTS_SIGNATURES,
    check_output,
    open_file,
    open_regular,
    write_file,
)
from pmapdp.job import Job
from pmapdp.registry import DATA_SETS
from pmapdp.run.checkpoints import Checkpoints, hide_log
from pmapdp.run.same_run import find_provenance

FORMAT = "pmapdp run 2"
WORKDIR_ADVICE = "name a --workdir of yours with free space, for example runs/first"


def with_full_paths(config: Config, *, is_process_0: bool = True) -> Config:
    """Make all paths absolute, because your code may change the current folder.

    If `is_process_0`, check that the metrics file can be written.
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
    if is_process_0:
        check_output("--metrics-file", paths.get("metrics_file"), RESULTS_SIGNATURES)
    full = {name: os.path.abspath(path) for name, path in paths.items()}
    return dataclasses.replace(config, **full)


@contextlib.contextmanager
def open_workdir(job: Job) -> Iterator[Checkpoints | None]:
    """Open the checkpoints in a run's workdir, and keep the workdir for this run.

    A run without a workdir gets None.
    """
    if not job.config.workdir:
        yield None
        return
    folder = Path(job.config.workdir)
    with contextlib.ExitStack() as stack:
        stack.enter_context(hide_log())
        if job.processes.is_process_0:
            stack.enter_context(lock_workdir(job.config.workdir))
        job.processes.wait("the workdir")  # until process 0 has made its lock
        # If the folder isn't shared, only process 0 finds the file.
        has_lock = (folder / "pmapdp.lock").exists()
        job.processes.require_same({flag("workdir", folder): has_lock})
        checkpoints = Checkpoints(
            folder / "checkpoints", find_provenance(job), job.config.keep_checkpoints
        )
        stack.callback(checkpoints.close)
        yield checkpoints


@contextlib.contextmanager
def lock_workdir(path: str) -> Iterator[None]:
    """Keep the folder of a run for this process, and make it if it's missing.

    A `UserError` says why it can't.
    """
    folder = Path(path)
    with explain_errors(f"{flag('workdir', path)} cannot be written", WORKDIR_ADVICE):
        if "\\" in path:
            raise ValueError("TensorStore takes its backslash for a slash")
        folder.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(folder / "config.json"):
            read_config(folder)  # refuses one that isn't ours
        else:
            require_empty(folder)
        lock = open_regular(folder / "pmapdp.lock", "a+")
    with lock:
        try:
            # Held as long as the file is open.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UserError(
                f"{flag('workdir', path)} is in use by process {lock.read(99)}: "
                "wait until that run has ended, or name another folder"
            ) from None
        # Whoever is refused can read who has it.
        lock.truncate(0)
        lock.write(f"{os.getpid()} on {socket.gethostname()}")
        lock.flush()
        yield


def require_empty(folder: Path) -> None:
    """Refuse a folder with files like a run's, which no run of ours has written."""
    for pattern in ("metrics.jsonl", "log.txt", "checkpoints/[0-9]*"):
        for foreign in folder.glob(pattern):
            raise UserError(
                f"{flag('workdir', folder)} holds {foreign.relative_to(folder)}, "
                "and no config.json says that a run of pmapdp wrote it: name a new "
                "folder, for example runs/first"
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
