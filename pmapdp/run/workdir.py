"""The folder of a run: its settings, checkpoints, metrics, TensorBoard files and log. One process at a time.

config.json       what the run does; another configuration is refused
checkpoints/      the last few states and the best
damaged/          checkpoints whose content is not what was written
metrics.jsonl     results, one JSON object a line
log.txt           what was printed
events.out.*      for `tensorboard --logdir DIR`
profile/          a trace, with --profile
lock              held by the running process; the system lets go of it when that process ends
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
from typing import Any, Literal, NotRequired

from pmapdp.config import Config
from pmapdp.errors import UserError
from pmapdp.files import FAULTS, open_regular, read_json, refusal, write_file

FORMAT = "pmapdp run 1"
WRITE_ADVICE = "name a --workdir of yours with free space, for example runs/first"

# What a run may change when it goes on: how it is spread, shown and written, and where it stops early. The batch
# size is compared as the global one, whichever way it was given.
FREE_SETTINGS = {
    "recipe",  # a name; the settings that it stands for are compared
    "strategy", "devices", "mesh", "layout", "shard_state", "steps_per_dispatch", "compile_cache", "data_dir",
    "global_batch_size", "per_device_batch_size", "steps", "draw_sharding", "check_on_one_device",
    "workdir", "fresh", "checkpoint_every", "keep_checkpoints",
    "metrics_file", "progress", "histograms", "profile",
    "check_replicas", "on_nan",  # the batches that were skipped are kept in the checkpoints
}  # fmt: skip

# A run of an earlier version lacks the settings that came later, and did what they do by default.
DEFAULTS = json.loads(json.dumps(dataclasses.asdict(Config())))

# What a run writes, by file and by folder and the names in it.
FILES = re.compile(r"config\.json|metrics\.jsonl|log\.txt|events\.out\.tfevents\..+")
FOLDERS = {
    "checkpoints": re.compile(r"\d+(\.orbax-checkpoint-tmp.*)?"),
    "damaged": re.compile(r"\d+_*"),
    "profile": re.compile(r"plugins"),
}


def identity(settings: dict[str, Any], global_batch_size: int) -> dict[str, Any]:
    """The settings on which the results of a run depend, as JSON gives them back."""
    fixed = {name: value for name, value in settings.items() if name not in FREE_SETTINGS}
    return json.loads(json.dumps(fixed | {"global_batch_size": global_batch_size}))


def differences(theirs: dict[str, Any], ours: dict[str, Any]) -> str:
    """In which settings two identities differ, in words; empty where they do not."""
    theirs = DEFAULTS | theirs
    different = {name: value for name, value in ours.items() if theirs.get(name) != value}
    return ", ".join(f"{name} ({theirs.get(name)!r} there, {value!r} now)" for name, value in different.items())


class Workdir:
    """The folder of a run, made if it is missing and locked for this process.

    Raises:
        UserError: it is no folder, cannot be written, holds files of somebody else under the names of ours, or is in
            use by a running process.
    """

    def __init__(self, path: str | Path):
        if str(path) == "" or "://" in str(path):
            why = "is not a folder: name a local or mounted one, for example runs/first"
            raise UserError(f"--workdir {str(path)!r} {why}")
        self.path = Path(path)
        try:
            if self.path.exists() and not self.path.is_dir():
                raise UserError(f"--workdir {path} is a file: name a folder, for example runs/first")
            self.path.mkdir(parents=True, exist_ok=True)
            self.require_ours()  # before anything is written, and, since another run may just have ended, again below
            self.lock = open(open_regular(self.path / "lock", os.O_RDWR | os.O_CREAT), "r+b", buffering=0)  # noqa: SIM115
            if not (owner := self.lock.read(99).decode("ascii", "replace")).isdigit() and owner:
                raise self.foreign("lock")
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as the file is open
            self.lock.truncate(0)
            os.pwrite(self.lock.fileno(), str(os.getpid()).encode(), 0)
            self.settings = self.require_ours()
        except BlockingIOError:
            raise UserError(
                f"--workdir {path} is in use by process {owner or 'unknown'}: wait until that run has ended, "
                "or name another folder"
            ) from None
        except FAULTS as error:
            raise refusal(f"--workdir {path}", "written", error, WRITE_ADVICE) from None

    def require_ours(self) -> dict[str, Any] | None:
        """The identity of the run in the folder; None where there is no run, nor anything under the names of its files.
        What has such a name, where no config.json says that a run wrote it, is a `UserError`."""
        if os.path.lexists(self.path / "config.json"):
            return identity(*read_settings(self.path))
        for each in sorted(self.path.iterdir()):
            used = each.name in FOLDERS and (not each.is_dir() or any(each.iterdir()))
            if used or FILES.fullmatch(each.name):
                raise self.foreign(each.name)
        return None

    def foreign(self, name: str) -> UserError:
        """The sentence for a file that no run of ours wrote."""
        return UserError(
            f"--workdir {self.path} holds {name}, and no config.json says that a run of pmapdp wrote it: "
            "name a new folder, for example runs/first"
        )

    def close(self) -> None:
        """Let others use the folder."""
        self.lock.close()

    def start(self, settings: dict[str, Any], global_batch_size: int, *, fresh: bool) -> bool:
        """Write config.json, or compare with the one there. Returns whether a run is to be continued; a `UserError`
        names the settings that differ. With `fresh` the run that is there is deleted first."""
        ours = identity(settings, global_batch_size)
        if self.settings is not None and fresh:
            self.clear()
            self.settings = None
        if self.settings is None:
            content = {"format": FORMAT, "config": settings, "global_batch_size": global_batch_size}
            write_file(self.path / "config.json", json.dumps(content, indent=2) + "\n", advice=WRITE_ADVICE)
            return False
        if differing := differences(self.settings, ours):
            raise UserError(
                f"--workdir {self.path} holds a run of another configuration, which differs in {differing}: use the "
                "same, another folder, or --fresh to delete that run"
            )
        return True

    def clear(self) -> None:
        """Delete what an earlier run wrote, except config.json, which says that it did; other files stay."""
        try:
            for name, written in FOLDERS.items():
                for each in (self.path / name).iterdir() if (self.path / name).is_dir() else ():
                    if written.fullmatch(each.name) and each.is_dir() and not each.is_symlink():
                        shutil.rmtree(each)
            for each in self.path.iterdir():
                if FILES.fullmatch(each.name) and each.is_file() and each.name != "config.json":
                    each.unlink()
        except OSError as error:
            raise UserError(
                f"--fresh cannot delete the run in --workdir {self.path} ({error.filename}: {error.strerror}): name "
                "another folder"
            ) from None


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
    form = {"format": NotRequired[Literal[FORMAT]], "config": dict[str, Any], "global_batch_size": int}
    content = read_json(file, form, advice="it is not as a run writes it, so name another folder")
    return DEFAULTS | content["config"], content["global_batch_size"]
