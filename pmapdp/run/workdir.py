"""The folder of a run: its configuration, checkpoints, metrics, TensorBoard files and log. One process at a time.

config.json       what the run does; another configuration is refused
checkpoints/      the last few states and the best
metrics.jsonl     results, one JSON object a line
log.txt           what was printed
events.out.*      for `tensorboard --logdir DIR`
lock              held by the running process; the system lets go of it when that process ends
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import jax

from pmapdp import devices
from pmapdp.config import Config
from pmapdp.errors import UserError
from pmapdp.optimizer import make_optimizer
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.state import Task, TrainState, make_task

# What a run may change when it goes on: how it is spread, shown and written, and where it stops early. The batch
# size is compared as the global one, whichever way it was given.
FREE_FIELDS = {
    "recipe",  # a name; the settings that it stands for are compared
    "strategy",
    "steps_per_dispatch",
    "devices",
    "mesh",
    "layout",
    "shard_state",
    "global_batch_size",
    "per_device_batch_size",
    "data_dir",
    "steps",
    "metrics_file",
    "progress",
    "workdir",
    "fresh",
    "checkpoint_every",
    "keep_checkpoints",
    "histograms",
    "profile",
    "compile_cache",
    "draw_sharding",
    "check_on_one_device",
}


class Workdir:
    """The folder of a run, locked for this process.

    Args:
        path: made if it is missing.

    Raises:
        UserError: it is a file, cannot be written, or is in use by a running process.
    """

    def __init__(self, path: str | Path):
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--workdir {path} is a file: name a folder, for example runs/first")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = open(self.path / "lock", "a+")  # noqa: SIM115 (held as long as the run)
        except OSError as error:
            raise UserError(
                f"--workdir {path} cannot be written ({error.strerror}): name a folder of yours, for example runs/first"
            ) from None
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.seek(0)
            owner = self.lock.read().strip() or "unknown"
            raise UserError(
                f"--workdir {path} is in use by process {owner}: wait until that run has ended, or name another folder"
            ) from None
        self.lock.truncate(0)
        self.lock.write(str(os.getpid()))
        self.lock.flush()

    def close(self) -> None:
        """Let others use the folder."""
        self.lock.close()

    def start(self, config: Config, global_batch_size: int) -> bool:
        """Write config.json, or compare with the one there. Returns whether a run is to be continued.

        Raises:
            UserError: the folder holds a run of another configuration; the fields that differ are named.
        """
        if config.fresh:
            self.clear()
        ours = {"config": dataclasses.asdict(config), "global_batch_size": global_batch_size}
        file = self.path / "config.json"
        if not file.exists():
            write_atomically(file, json.dumps(ours, indent=2) + "\n")
            return False
        theirs = read_json(file)
        differences = [
            f"{field} ({theirs['config'].get(field)!r} there, {value!r} now)"
            for field, value in json.loads(json.dumps(ours["config"])).items()
            if field not in FREE_FIELDS and theirs["config"].get(field) != value
        ]
        if theirs["global_batch_size"] != global_batch_size:
            differences.append(f"global_batch_size ({theirs['global_batch_size']} there, {global_batch_size} now)")
        if differences:
            raise UserError(
                f"--workdir {self.path} holds a run of another configuration, which differs in "
                f"{', '.join(differences)}: use the same, another folder, or --fresh to delete that run"
            )
        return True

    def clear(self) -> None:
        """Delete an earlier run; other files in the folder stay."""
        for folder in ("checkpoints", "damaged", "profile"):
            shutil.rmtree(self.path / folder, ignore_errors=True)
        for file in (self.path / "config.json", self.path / "metrics.jsonl", self.path / "log.txt"):
            file.unlink(missing_ok=True)
        for file in self.path.glob("events.out.tfevents.*"):
            file.unlink()


def require_shared(path: str | Path, seconds: float = 10) -> None:
    """Look whether process 0 has written into the folder of this name that this process sees.

    Raises:
        UserError: it has not; a network file system gets `seconds` to show it.
    """
    deadline = time.monotonic() + seconds
    while not (Path(path) / "config.json").exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"--workdir {path} on {socket.gethostname()} is not the folder that process 0 writes to: name one "
                "that all processes share, by its full path"
            )
        time.sleep(0.1)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that it is there whole or not at all.

    Raises:
        UserError: it cannot be written.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}): name a folder of yours with free space"
        ) from None


def read_json(path: Path) -> Any:
    """The content of a JSON file.

    Raises:
        UserError: it is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read ({error}): start anew with --fresh, or name another folder") from None


def read_config(path: str | Path) -> Config:
    """The configuration of the run in a folder, its batch size given as the global one.

    Raises:
        UserError: there is no run in it.
    """
    file = Path(path) / "config.json"
    if not file.is_file():
        raise UserError(f"{path} holds no run (no config.json): name the --workdir of a training run")
    content = read_json(file)
    batch_size = {"global_batch_size": content["global_batch_size"], "per_device_batch_size": None}
    return Config.from_json(content["config"] | batch_size)


def load_state(path: str | Path, task: Task) -> tuple[TrainState, dict[str, Any]]:
    """The newest whole checkpoint in the folder of a run of `task`: state on the host, and its progress.

    Raises:
        UserError: there is none.
    """
    folder = Path(path) / "checkpoints"
    if not folder.is_dir():
        raise UserError(f"{path} holds no checkpoint yet: let the training run finish an epoch first")
    checkpoints = Checkpoints(folder, only_read=True)
    for step in reversed(checkpoints.steps()):
        try:
            found = checkpoints.read(step, task)
        except Exception:  # a damaged one; only the run itself, which holds the lock, sets it aside
            continue
        return found.state, found.progress
    raise UserError(f"{path} holds no whole checkpoint: let the training run finish an epoch first")


def load_run(path: str | Path) -> tuple[Config, TrainState, dict[str, Any]]:
    """Configuration, newest state (on the host) and its metrics of the run in a folder.

    Raises:
        UserError: there is no run or no checkpoint in it.
    """
    config = read_config(path)
    with contextlib.suppress(UserError):  # too late to simulate devices: reading needs none
        devices.simulate(config.devices or devices.DEFAULT_SIMULATED)
    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    # The learning rates do not matter here: they are not part of the state.
    state, progress = load_state(path, make_task(config, make_optimizer(config, lambda step: 0.0)))
    return config, state, progress["last"]
