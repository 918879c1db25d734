"""The folder of a run: its settings, checkpoints, metrics, TensorBoard files and log. One process at a time.

config.json       what the run does; another configuration is refused
checkpoints/      the last few states
damaged/          checkpoints whose content is not what was written
metrics.jsonl     results, one JSON object a line
log.txt           what was printed
events.out.*      for `tensorboard --logdir DIR`
profile/          a trace, with --profile
pmapdp.lock       held by the running process; the system lets go of it when that process ends
"""

import dataclasses
import fcntl
import json
import os
import re
import shutil
import socket
import time
from pathlib import Path
from typing import Any

from pmapdp.config import Config
from pmapdp.errors import UserError
from pmapdp.files import open_regular, read_json, saying, write_file

WRITE_ADVICE = "name a --workdir of yours with free space, for example runs/first"

# What a run may change when it goes on: how it is spread, shown and written, and where it stops early. The batch
# size is compared as the global one, whichever way it was given.
FREE_SETTINGS = {
    "recipe",  # a name; the settings that it stands for are compared
    "strategy", "devices", "mesh", "layout", "shard_state", "steps_per_dispatch", "compile_cache", "data_dir",
    "global_batch_size", "per_device_batch_size", "steps", "draw_sharding",
    "workdir", "fresh", "checkpoint_every", "keep_checkpoints",
    "metrics_file", "progress", "profile",
    "check_replicas", "on_nan",  # the batches that were skipped are kept in the checkpoints
}  # fmt: skip

# A run of an earlier version lacks the settings that came later, and did what they do by default.
DEFAULTS = json.loads(json.dumps(dataclasses.asdict(Config())))

# What a run writes beside config.json and its lock.
WRITTEN = re.compile(
    r"metrics\.jsonl|log\.txt|events\.out\.tfevents\..+|checkpoints/\d+(\.orbax-checkpoint-tmp.*)?|damaged/\d+_*|"
    r"profile/plugins"
)
FOLDERS = ("", "checkpoints", "damaged", "profile")


def identity(settings: dict[str, Any], global_batch_size: int) -> dict[str, Any]:
    """The settings on which the results of a run depend, as JSON gives them back."""
    fixed = {name: value for name, value in settings.items() if name not in FREE_SETTINGS}
    return json.loads(json.dumps(fixed | {"global_batch_size": global_batch_size}))


def require_same(what: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Refuse a run or checkpoint, called `what`, whose identity is another; the `UserError` names the settings."""
    theirs = DEFAULTS | theirs
    different = [
        f"{name} ({theirs.get(name)!r} there, {value!r} now)"
        for name, value in ours.items()
        if theirs.get(name) != value
    ]
    if different:
        raise UserError(
            f"{what} is of another configuration, which differs in {', '.join(different)}: use the same, another "
            "folder, or --fresh to delete that run"
        )


class Workdir:
    """The folder of a run, made if it is missing and locked for this process.

    Raises:
        UserError: it is no folder, cannot be written, holds files of somebody else under the names of ours, or is in
            use by a running process.
    """

    def __init__(self, path: str | Path):
        if not str(path):  # of which pathlib makes the current folder
            raise UserError("--workdir '' is no folder: name one, for example runs/first")
        self.path = Path(path)
        with saying(f"--workdir {path}", "written", WRITE_ADVICE):
            self.path.mkdir(parents=True, exist_ok=True)
            self.found()  # refuses a folder of somebody else before anything is written there
            self.lock = open(open_regular(self.path / "pmapdp.lock", os.O_RDWR | os.O_CREAT), "r+")  # noqa: SIM115
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as the file is open
            except BlockingIOError:
                raise UserError(
                    f"--workdir {path} is in use by process {self.lock.read(99)}: wait until that run has ended, or "
                    "name another folder"
                ) from None
            self.lock.truncate(0)
            self.lock.write(f"{os.getpid()} on {socket.gethostname()}")
            self.lock.flush()

    def written(self) -> list[Path]:
        """What a run wrote there beside config.json, or what has the name of such a file."""
        paths = [path for folder in FOLDERS for path in (self.path / folder).glob("*")]
        return [path for path in paths if WRITTEN.fullmatch(path.relative_to(self.path).as_posix())]

    def found(self) -> dict[str, Any] | None:
        """The identity of the run in the folder, None where there is none."""
        if os.path.lexists(self.path / "config.json"):
            return identity(*read_settings(self.path))
        for foreign in self.written():
            raise UserError(
                f"--workdir {self.path} holds {foreign.relative_to(self.path)}, and no config.json says that a run of "
                "pmapdp wrote it: name a new folder, for example runs/first"
            )
        return None

    def start(self, settings: dict[str, Any], global_batch_size: int, *, fresh: bool) -> None:
        """Write config.json, or compare with the one there: a `UserError` names the settings that differ. With `fresh`
        the run that is there is deleted first."""
        theirs = self.found()
        if theirs is not None and not fresh:
            require_same(f"the run in --workdir {self.path}", theirs, identity(settings, global_batch_size))
            return
        with saying(f"the run in --workdir {self.path}", "deleted for --fresh", "name another folder"):
            for each in self.written():
                shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        content = {"format": "pmapdp run 1", "config": settings, "global_batch_size": global_batch_size}
        write_file(self.path / "config.json", json.dumps(content, indent=2) + "\n", advice=WRITE_ADVICE)

    def close(self) -> None:
        """Let others use the folder."""
        self.lock.close()


def require_shared(path: str, seconds: float = 10) -> None:
    """Refuse a folder in which this process does not see what process 0 wrote, `seconds` after it did."""
    deadline = time.monotonic() + seconds
    while not (Path(path) / "config.json").exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"--workdir {path} on {socket.gethostname()} is not the folder that process 0 writes to: name one "
                "that all processes share, by its full path"
            )
        time.sleep(0.1)


def read_settings(path: str | Path) -> tuple[dict[str, Any], int]:
    """The settings, those that it lacks with their defaults, and the global batch size of the run in a folder. A
    `UserError` says that there is none, or that its config.json is not as a run writes it."""
    file = Path(path) / "config.json"
    if not os.path.lexists(file):
        raise UserError(f"{path} holds no run (no config.json): name the --workdir of a training run")
    match read_json(file, advice="name another folder"):
        case {"format": "pmapdp run 1", "config": dict(settings), "global_batch_size": int(global_batch_size)}:
            return DEFAULTS | settings, global_batch_size
    raise UserError(f"{file} is not as a run writes it: name another folder")
