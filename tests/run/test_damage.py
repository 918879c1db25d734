"""Which checkpoints are damaged, and are set aside: those whose content is wrong, and not those that cannot be read."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest
from launch import environment, python
from marks import quick
from run_folders import JOB, begin, change_progress, content

from pmapdp.job import prepare
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.damage import DamagedError, outside_cause
from pmapdp.train import train


@pytest.mark.parametrize("changes", [{"totals": [1.0, 2.0, 3]}, {"crc32": None}, None], ids=str)
def test_an_altered_progress_is_damage(folder, changes):
    """Also that of another step."""
    if changes is None:
        shutil.rmtree(folder / "checkpoints" / "18")
        (folder / "checkpoints" / "12").rename(folder / "checkpoints" / "18")
    else:
        change_progress(folder, 18, **changes)
    begin(folder)
    assert (folder / "damaged" / "18").is_dir()
    assert not (folder / "checkpoints" / "18").exists()


def test_one_altered_number_is_damage(folder):
    """Every bit counts: in the arrays as written, that the files' format would not notice."""
    job = prepare(JOB)
    checkpoints = Checkpoints(folder / "checkpoints")
    found = checkpoints.read(18, job.task)
    altered = jax.tree.map(np.array, found.state)
    kernel = altered.params["logits"]["kernel"]
    kernel.view(np.uint32)[3, 3] ^= 1
    progress = {name: value for name, value in found.progress.items() if name != "checksum_of_words"}
    checkpoints.save(19, altered, progress)
    checkpoints.wait()
    change_progress(
        folder, 19, checksum=True, checksum_of_words=found.progress["checksum_of_words"], belongs_to=progress
    )
    with pytest.raises(DamagedError, match="checksum of its arrays"):
        checkpoints.read(19, job.task)
    checkpoints.close()


WITH_FEW = """
import os, resource, sys
from pathlib import Path
from pmapdp.errors import UserError
from pmapdp.job import prepare
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.trained import read_config

job, folder = prepare(read_config(sys.argv[1])), Path(sys.argv[1]) / "checkpoints"
checkpoints = Checkpoints(folder, only_read=True)
state = checkpoints.read(18, job.task).state  # everything is imported and compiled
kind, more, work = resource.RLIMIT_NOFILE, int(sys.argv[3]), [lambda: checkpoints.read(18, job.task)]
used = len(os.listdir("/proc/self/fd"))
if sys.argv[2] == "memory":
    writer = Checkpoints(folder)
    work.append(lambda: writer.save(19, state, {}))
    kind, used = resource.RLIMIT_AS, resource.getpagesize() * int(Path("/proc/self/statm").read_text().split()[0])
before = resource.getrlimit(kind)
resource.setrlimit(kind, (used + more, before[1]))
messages = []
for do in 10 * work:
    try:
        do()
        messages.append("done")
    except UserError as error:
        messages.append(error)
resource.setrlimit(kind, before)
print(*messages, sep="\\n")
os._exit(0)
"""


@quick(
    2,
    ("kind", "more"),
    [("memory", 0), ("handles", 0), ("handles", 1), ("handles", 3), ("memory", 2**20), ("memory", 4 * 2**20)],
)
def test_without_file_handles_or_memory_nothing_is_called_damaged(folder, kind, more):
    """Nor does it hang: without memory CPython did, once in eleven times."""
    before = content(folder)
    done = python("-c", WITH_FEW, folder, kind, more, timeout=60)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        refused = re.search("Too many open files|start new thread|Cannot allocate memory", line)
        assert refused or (kind == "handles" and more and line == "done"), done
    assert content(folder) == before


def test_an_error_that_led_to_that_of_orbax_tells_that_memory_was_short(folder):
    """With 28 MiB left Orbax raised just this."""
    error = Exception("Encountered error while reading array index: (slice(0, 512, 1),).")
    assert outside_cause(error, folder) is None
    error.__cause__ = RuntimeError("can't start new thread")
    assert outside_cause(error, folder) == "can't start new thread"


GO_ON = """
import dataclasses, sys
from pmapdp.errors import UserError
from pmapdp.train import train
from pmapdp.run.trained import read_config

try:
    train(dataclasses.replace(read_config(sys.argv[1]), workdir=sys.argv[1]))
except UserError as error:
    print("refused:", error)
"""


@quick(1, "name", ["checkpoints/18/state", "checkpoints/18/progress/metadata", "checkpoints/18", "checkpoints"])
def test_what_may_not_be_read_is_no_damage(folder, name):
    before = content(folder)
    (folder / name).chmod(0)
    as_user = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    command = [*as_user, sys.executable, "-c", GO_ON, folder]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), check=False)
    (folder / name).chmod(0o755)
    assert "refused: " in done.stdout, done.stderr
    assert "Permission denied" in done.stdout
    assert content(folder) == before


def test_a_file_that_the_disk_cannot_read_is_no_damage(folder):
    """Reading this file of the kernel is an error of input and output, as on a broken disk."""
    files = [path for path in (folder / "checkpoints" / "18" / "state").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    largest.unlink()
    largest.symlink_to("/proc/self/mem")
    before = content(folder)
    assert "cannot be read (Input/output error): nothing was changed" in python("-c", GO_ON, folder).stdout
    assert content(folder) == before


def test_stopped_before_the_first_epoch_then_told_to_stop_there(tmp_path):
    """The run has no figures yet, neither best nor last."""
    config = dataclasses.replace(JOB, workdir=str(tmp_path), checkpoint_every=2, keep_checkpoints=99)
    train(config)
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        if checkpoint.name != "2":
            shutil.rmtree(checkpoint)
    assert train(dataclasses.replace(config, steps=2)).epochs == []
