"""The folder of a run, which belongs to one configuration, and to one process at a time.

config.json       what the run does; another configuration is refused
checkpoints/      the newest states, and the best epoch's
metrics.jsonl     results, one JSON object a line
log.txt           what was printed
events.out.*      for `tensorboard --logdir DIR`
profile/          a trace, with --profile
pmapdp.lock       held by the running process; the system releases it when that process ends
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
from pmapdp.errors import UserError
from pmapdp.files import LINES, check_output, file_errors, open_regular, read_json, write_file
from pmapdp.registry import DATA_SETS

FORMAT = "pmapdp run 2"
WRITE_ADVICE = "name a --workdir of yours with free space, for example runs/first"
CONTENT = "the content of the data"
CODE = ("dataset", "model", "optimizer", "schedule")  # settings that may name a file of the user's


def with_full_paths(config: Config, *, first: bool = True) -> Config:
    """Make all paths of a configuration absolute, because code of the user's may change the current folder.

    The `first` process, which writes the metrics file, looks at it before any work.
    """
    names = [name for name in ("workdir", "data_dir", "metrics_file", "init_from") if getattr(config, name)]
    names += [name for name in CODE if is_path(getattr(config, name))]
    if first:
        check_output("--metrics-file", config.metrics_file, LINES, [config.init_from])
    if "\\" in (config.workdir or ""):
        raise UserError(
            f"--workdir {config.workdir} has a backslash, which TensorStore takes for a slash: leave it out"
        )
    return dataclasses.replace(config, **{name: os.path.abspath(getattr(config, name)) for name in names})


def is_path(name: str) -> bool:
    """Tell the file or folder of a model, data set or rule from the name of one of ours."""
    return ".py:" in name or name.endswith(".npz") or (name not in DATA_SETS and os.path.isdir(name))


def identity(config: Config, global_batch_size: int, content: str | None = None) -> dict[str, Any]:
    """Return the settings on which the results of a run depend, as JSON gives them back.

    Args:
        config: of the run. The folders of its own files don't count: they may be moved.
        global_batch_size: the batch size is compared as this one, whichever way it was given.
        content: of the data, a `fingerprint`.
    """
    fixed = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.metadata["fixed"]}
    fixed |= {name: os.path.basename(fixed[name]) for name in CODE if is_path(fixed[name])}
    fixed |= {"global_batch_size": global_batch_size, **({CONTENT: content} if content else {})}
    return json.loads(json.dumps(fixed))


def require_same(what: str, theirs: dict[str, Any], ours: dict[str, Any], *, ended: bool = False) -> None:
    """Refuse a run or checkpoint, called `what`, of another identity. One that has `ended` may be given more epochs."""
    different = {name: (theirs.get(name, now), now) for name, now in ours.items() if theirs.get(name, now) != now}
    if ended and different.keys() == {"epochs"} and ours["epochs"] > theirs["epochs"]:
        return
    if different:
        listed = ", ".join(f"{name} ({then!r} there, {now!r} now)" for name, (then, now) in different.items())
        raise UserError(
            f"{what} is of another configuration, which differs in {listed}: use the same or another folder (there "
            "--init-from starts from its weights), or delete that run yourself"
        )


@contextlib.contextmanager
def lock_workdir(path: str, config: Config, global_batch_size: int) -> Iterator[None]:
    """Keep the folder of a run for this process alone. The folder and its config.json are made if they are missing.

    Raises:
        UserError: it can't be written, holds somebody else's files under our names or a run of another configuration,
            or is in use by a running process.
    """
    folder = Path(path)
    with contextlib.ExitStack() as stack:
        with file_errors(f"--workdir {path}", "written", WRITE_ADVICE):
            folder.mkdir(parents=True, exist_ok=True)
            require_ours(folder)
            lock = stack.enter_context(open(open_regular(folder / "pmapdp.lock", os.O_RDWR | os.O_CREAT), "r+"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # held as long as the file is open
            except BlockingIOError:
                raise UserError(
                    f"--workdir {path} is in use by process {lock.read(99)}: wait until that run has ended, or name "
                    "another folder"
                ) from None
            lock.truncate(0)
            os.write(lock.fileno(), f"{os.getpid()} on {socket.gethostname()}".encode())
        if (folder / "config.json").exists():
            # Whether it may be given more epochs is seen when its checkpoint is read.
            theirs = identity(*read_run(folder)) | {"epochs": config.epochs}
            require_same(f"the run in --workdir {path}", theirs, identity(config, global_batch_size))
        else:
            write_config(folder, config, global_batch_size)
        yield


def require_ours(folder: Path) -> None:
    """Refuse a folder with files that a run would append to or delete in time, but that no run wrote."""
    if not os.path.lexists(folder / "config.json"):
        for pattern in ("metrics.jsonl", "log.txt", "checkpoints/[0-9]*"):
            for foreign in folder.glob(pattern):
                raise UserError(
                    f"--workdir {folder} holds {foreign.relative_to(folder)}, and no config.json says that a run of "
                    "pmapdp wrote it: name a new folder, for example runs/first"
                )


def write_config(folder: Path, config: Config, global_batch_size: int) -> None:
    """Write what a run does."""
    content = {"format": FORMAT, "config": vars(config), "global_batch_size": global_batch_size}
    write_file(folder / "config.json", json.dumps(content, indent=2) + "\n", advice=WRITE_ADVICE)


def require_shared(path: str, seconds: float = 10) -> None:
    """Refuse a folder in which this process doesn't see what process 0 wrote, `seconds` after it did."""
    deadline = time.monotonic() + seconds
    while not (Path(path) / "config.json").exists():
        if time.monotonic() > deadline:
            raise UserError(
                f"--workdir {path} on {socket.gethostname()} is not the folder that process 0 writes to: name one "
                "that all processes share, by its full path"
            )
        time.sleep(0.1)


def read_run(path: str | Path) -> tuple[Config, int]:
    """Read the configuration of the run in a folder, and its global batch size."""
    file = Path(path) / "config.json"
    if not os.path.lexists(file):
        raise UserError(f"{path} holds no run (no config.json): name the --workdir of a training run")
    match read_json(file, advice="name another folder"):
        case {"format": "pmapdp run 1"}:
            raise UserError(f"{path} holds a run of pmapdp 0.2, which this version cannot read: use 0.2 for it")
        case {"format": "pmapdp run 2", "config": dict(settings), "global_batch_size": int(size)}:
            with contextlib.suppress(UserError, TypeError):  # TypeError: an unknown setting
                settings = {name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()}
                return Config(**settings), size
    raise UserError(f"{file} is not as a run of this version writes it: name another folder")


def read_config(path: str | Path) -> Config:
    """Read the configuration of the run in a folder, its batch size as the global one."""
    config, global_batch_size = read_run(path)
    return dataclasses.replace(config, global_batch_size=global_batch_size, per_device_batch_size=None)
