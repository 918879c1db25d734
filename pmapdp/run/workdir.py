"""The folder of a run: its settings, checkpoints, metrics, TensorBoard files and log. One process at a time.

config.json       what the run does; another configuration is refused
checkpoints/      the last few states, and that of the best epoch
damaged/          checkpoints whose content is not what was written
metrics.jsonl     results, one JSON object a line
log.txt           what was printed
events.out.*      for `tensorboard --logdir DIR`
profile/          a trace, with --profile
pmapdp.lock       held by the running process; the system lets go of it when that process ends
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pmapdp.config import Config
from pmapdp.custom.data import custom_files
from pmapdp.errors import UserError, require
from pmapdp.files import LINES, check_output, file_errors, open_regular, read_json, write_file

WRITE_ADVICE = "name a --workdir of yours with free space, for example runs/first"

# What the results of a run depend on. The rest may change when it is resumed: how it is spread, shown and written. The
# batch size is compared as the global one, whichever way it was given.
SECTIONS = ("data", "model", "optimization", "run")
FIXED = {field.name for field in dataclasses.fields(Config) if field.metadata["section"] in SECTIONS}
FIXED = FIXED - {"data_dir", "steps"} | {"accumulate"}

# Of these, what may change when a run that has ended is trained on (`run/resume.py`): how long, and its learning rate.
SCHEDULED = {"epochs", "patience", "learning_rate", "schedule", "switch_epochs", "switch_factor", "warmup_steps"}
SCHEDULED |= {"scale_learning_rate", "base_batch_size"}

# A run of an earlier version lacks the settings that came later, and did what they do by default.
DEFAULTS = json.loads(json.dumps(dataclasses.asdict(Config())))

CONTENT = "the content of the data"

# Files that a run would append to, or delete in time.
ENDANGERED = ("metrics.jsonl", "log.txt", "checkpoints/[0-9]*")


def identity(config: Config, global_batch_size: int, content: str | None = None) -> dict[str, Any]:
    """The settings on which the results of a run depend, as JSON gives them back, and where it is given the `content`
    of its data, `fingerprint`."""
    fixed = {name: value for name, value in dataclasses.asdict(config).items() if name in FIXED}
    fixed |= {CONTENT: content} if content else {}
    return json.loads(json.dumps(fixed | {"global_batch_size": global_batch_size}))


def changes(theirs: dict[str, Any], ours: dict[str, Any], *, scheduled: bool) -> dict[str, list[Any]]:
    """What is different in two identities, [theirs, ours] by setting: of those that are `scheduled`, or of the others.
    One of an earlier version does not know the content of its data."""
    theirs = DEFAULTS | {CONTENT: ours.get(CONTENT)} | theirs
    return {
        name: [theirs.get(name), value]
        for name, value in ours.items()
        if theirs.get(name) != value and (name in SCHEDULED) == scheduled
    }


def listed(changes: dict[str, list[Any]]) -> str:
    """Changes for a sentence."""
    return ", ".join(f"{name} ({then!r} there, {now!r} now)" for name, (then, now) in changes.items())


def require_same(what: str, theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """Refuse a run or checkpoint, called `what`, whose identity is another, apart from how long it is trained and with
    which learning rate; the `UserError` names the settings."""
    if different := changes(theirs, ours, scheduled=False):
        raise UserError(
            f"{what} is of another configuration, which differs in {listed(different)}: use the same or another "
            "folder (there --init-from starts from its weights), or delete that run yourself"
        )


def with_full_paths(config: Config, *, first: bool = True) -> Config:
    """The configuration with full paths, because code of the user's may change the current folder.

    The `first` process, which writes the metrics file, looks at it before any work.

    Raises:
        UserError: it is an input, a file of a run or of another kind, or cannot be written.
    """
    require(Config, "config", config, "pmapdp.config.Config(devices=8)")
    if first:
        check_output("--metrics-file", config.metrics_file, LINES, [*custom_files(config), config.init_from])
    paths = {name: getattr(config, name) for name in ("workdir", "data_dir", "metrics_file", "init_from")}
    return dataclasses.replace(config, **{name: os.path.abspath(path) for name, path in paths.items() if path})


def require_literal(folder: Path) -> None:
    """Raise a ValueError where TensorStore, with which Orbax writes the arrays, would not use this very folder."""
    name = os.path.abspath(folder)
    if "\\" in name or "gs:/" in f"{name}/" or name.encode(errors="replace").decode() != name:
        raise ValueError("checkpoints cannot be below a folder with a backslash, with gs: at its end, or not in UTF-8")


@contextlib.contextmanager
def claimed(path: str | Path, config: Config, global_batch_size: int) -> Iterator[None]:
    """A folder for the run of `config` and this process alone; it and its config.json are made where they are
    missing.

    Raises:
        UserError: it is no folder, cannot be written, holds files of somebody else under the names of ours or a run of
            another configuration, or is in use by a running process.
    """
    folder = Path(path)
    with contextlib.ExitStack() as stack:
        with file_errors(f"--workdir {path}", "written", WRITE_ADVICE):
            require_literal(folder)
            folder.mkdir(parents=True, exist_ok=True)
            found(folder)  # refuses a folder of somebody else before anything is written there
            lock = stack.enter_context(open(open_regular(folder / "pmapdp.lock", os.O_RDWR | os.O_CREAT), "r+"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as the file is open
            except BlockingIOError:
                raise UserError(
                    f"--workdir {path} is in use by process {lock.read(99)}: wait until that run has ended, or name "
                    "another folder"
                ) from None
            lock.truncate(0)
            os.write(lock.fileno(), f"{os.getpid()} on {socket.gethostname()}".encode())  # a buffer would fail twice
        if theirs := found(folder):
            require_same(f"the run in --workdir {path}", theirs, identity(config, global_batch_size))
        else:
            write_config(folder, config, global_batch_size)
        yield


def write_config(folder: Path, config: Config, global_batch_size: int) -> None:
    """Let the config.json in the folder of a run say what it does now."""
    content = {"format": "pmapdp run 1", "config": vars(config), "global_batch_size": global_batch_size}
    write_file(folder / "config.json", json.dumps(content, indent=2) + "\n", advice=WRITE_ADVICE)


def found(folder: Path) -> dict[str, Any] | None:
    """The identity of the run in a folder, None where there is none."""
    if os.path.lexists(folder / "config.json"):
        return identity(*read_run(folder))
    for foreign in (path for pattern in ENDANGERED for path in folder.glob(pattern)):
        raise UserError(
            f"--workdir {folder} holds {foreign.relative_to(folder)}, and no config.json says that a run of pmapdp "
            "wrote it: name a new folder, for example runs/first"
        )
    return None


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


def read_run(path: str | Path) -> tuple[Config, int]:
    """The configuration of the run in a folder, settings that it lacks with their defaults, and its global batch size.
    A `UserError` says that there is none, or that its config.json is not as a run writes it."""
    file = Path(path) / "config.json"
    if not os.path.lexists(file):
        raise UserError(f"{path} holds no run (no config.json): name the --workdir of a training run")
    match read_json(file, advice="name another folder"):
        case {"format": "pmapdp run 1", "config": dict(settings), "global_batch_size": int(global_batch_size)}:
            known = {name: settings[name] for name in DEFAULTS if name in settings}  # what is gone changes no result
            try:
                return Config(**known), global_batch_size
            except UserError as error:
                raise UserError(f"{file} is not as a run writes it, name another folder: {error}") from None
    raise UserError(f"{file} is not as a run writes it: name another folder")
