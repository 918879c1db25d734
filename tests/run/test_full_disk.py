"""Another program fills the disk just when something is written: one sentence, and nothing half-written is left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from disks import small_disk
from launch import environment
from marks import quick
from running import run

from pmapdp.errors import UserError
from pmapdp.files import write_file
from pmapdp.run.log import LinesFile
from pmapdp.run.trained import load_run

JOB = ["--model", "mlp", "--strategy", "single", "--optimizer", "sgd", "--no-progress"]
JOB += ["--global-batch-size", 256, "--epochs", 4]

# `python -m pmapdp.train` that fills the disk but for some bytes when it has found room for its third checkpoint.
TRAIN = """
import os, sys
left, disk, *arguments = sys.argv[1:]
sys.argv, sys.orig_argv = ["-m", *arguments], ["python", "-m", "pmapdp.train", *arguments]
from pmapdp.run.checkpoint import Checkpoints
require_room, found = Checkpoints.require_room, []

def fill(self, needed):
    require_room(self, needed)
    found.append(needed)
    if sum(map(bool, found)) == 3:
        self.manager.wait_until_finished()  # the second is then on the disk
        with open(disk + "/other", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, (free := os.statvfs(disk)).f_bavail * free.f_frsize - int(left))

Checkpoints.require_room = fill
from pmapdp import cli, train
sys.exit(cli.run(train.main))
"""


@pytest.fixture
def disk(tmp_path):
    """A file system of 24 MB: room for five checkpoints."""
    with small_disk(tmp_path / "disk", "size=24m") as folder:
        yield folder


def fill(disk: Path, left: int) -> None:
    with open(disk / "other", "wb") as file:
        free = os.statvfs(disk)
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - left)


@quick(0, "left", [50_000, 0, 1_000_000], by_day=1)
def test_while_a_checkpoint_is_written(disk, left):
    command = [sys.executable, "-c", TRAIN, left, disk, *JOB, "--workdir", disk / "run"]
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=120, env=environment(), check=False
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("error: a checkpoint could not be written")
    assert "(No space left on device): those before it are intact" in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (disk / "run" / "checkpoints" / "18").exists()
    assert load_run(disk / "run")[2]["epoch"] == 2
    (disk / "other").unlink()
    run(*JOB, "--workdir", disk / "run")
    assert load_run(disk / "run")[2]["epoch"] == 4


def test_while_a_line_is_written(disk):
    file = LinesFile(disk / "metrics.jsonl")
    file.event("epoch", epoch=1)
    fill(disk, 0)
    with pytest.raises(UserError, match="No space left on device"):
        file.event("epoch", epoch=2, more="x" * 10_000)
    file.close()
    assert list(map(json.loads, (disk / "metrics.jsonl").read_text().splitlines())) == [{"event": "epoch", "epoch": 1}]


def test_while_json_is_written(disk):
    write_file(disk / "report.json", "{}")
    fill(disk, 4096)
    with pytest.raises(UserError, match="No space left on device"):
        write_file(disk / "report.json", "[" + "0, " * 10_000 + "0]")
    with pytest.raises(UserError, match="No space left on device"):
        write_file(disk / "another.json", "[" + "0, " * 10_000 + "0]")
    assert sorted(os.listdir(disk)) == ["other", "report.json"]
    assert (disk / "report.json").read_text() == "{}"
