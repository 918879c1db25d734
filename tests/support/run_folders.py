"""A short run, and what its folder holds before and after something that it refuses."""

import contextlib
import dataclasses
import json
import os
from pathlib import Path

import pytest
from running import run

from pmapdp.config import Config
from pmapdp.errors import UserError
from pmapdp.job import prepare
from pmapdp.run.damage import write_list
from pmapdp.run.resume import beginning, open_checkpoints

JOB = Config(
    model="mlp", strategy="single", devices=1, optimizer="sgd", global_batch_size=256, epochs=3, progress=False
)
COMMAND = ["--model", "mlp", "--strategy", "single", "--devices", 1, "--optimizer", "sgd", "--no-progress"]
COMMAND += ["--global-batch-size", 256, "--epochs", 3]


def content(folder: Path) -> dict[str, object]:
    """Every file below a folder with its bytes, and every folder and link."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        if path.is_file() and not path.is_symlink()
        else os.readlink(path)
        if path.is_symlink()
        else None
        for path in sorted(folder.rglob("*"))
        if path.name != "pmapdp.lock"
    }


def begin(folder: Path | str, **changes: object) -> None:
    """Start in a folder as a run does, up to its first update."""
    config = dataclasses.replace(JOB, workdir=str(folder), **changes)
    with contextlib.ExitStack() as stack:
        job = prepare(config)
        beginning(job, open_checkpoints(job, stack))


def refusal(folder: Path, **changes: object) -> str:
    """The sentence with which a folder is refused, after which it is as it was before."""
    before = content(folder)
    with pytest.raises(UserError) as caught:
        begin(folder, **changes)
    assert content(folder) == before
    return str(caught.value)


def refused(*arguments: object) -> tuple[str, str]:
    """stdout, and the one line on stderr, of a command that refuses its arguments."""
    out, err = run(*arguments, status=2)
    assert err.count("\n") == 1, err
    return out, err


def change_progress(folder: Path, step: int, /, *, checksum: bool = False, **changes: object) -> None:
    """Alter the progress in a checkpoint; with or without the checksum that belongs to it."""
    checkpoint = folder / "checkpoints" / str(step)
    file = checkpoint / "progress" / "metadata"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    if checksum:
        write_list(checkpoint, step)
