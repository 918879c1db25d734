"""Which checkpoints are damaged, and are set aside: those whose content is wrong, and not those that cannot be read."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from launch import environment, python
from marks import quick
from run_folders import JOB, begin, change_progress, content, refusal

from pmapdp.run.damage import LATER, LIST, write_list
from pmapdp.train import train


def largest(folder: Path) -> Path:
    """The file that holds most of the arrays."""
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("alter", [flip, cut, Path.unlink, replace_by_folder, replace_by_pipe])
@quick(2, "name", ["progress/metadata", "largest", "state/_METADATA", "state/_sharding", "state/manifest.ocdbt"])
def test_every_bit_of_every_file_counts(folder, name, alter):
    checkpoint = folder / "checkpoints" / "18"
    alter(largest(checkpoint) if name == "largest" else checkpoint / name)
    begin(folder)
    assert (folder / "damaged" / "18").is_dir()
    assert not checkpoint.exists()
    assert (folder / "checkpoints" / "12").is_dir()


@pytest.mark.parametrize("name", LATER)
def test_what_orbax_reads_nothing_from_is_no_damage(folder, name):
    """It writes these two after the list of files."""
    (folder / "checkpoints" / "18" / name).write_bytes(b"\xff{")
    begin(folder)
    assert not (folder / "damaged").exists()


def test_a_checkpoint_under_the_name_of_another_is_damage(folder):
    shutil.rmtree(folder / "checkpoints" / "18")
    (folder / "checkpoints" / "12").rename(folder / "checkpoints" / "18")
    begin(folder)
    assert (folder / "damaged" / "18").is_dir()


@pytest.mark.parametrize("text", ["", "{}", "[", '{"step": 18, "files": []}', "[" * 10_000, "\udcff"])
def test_a_list_that_no_run_wrote_is_damage(folder, text):
    (folder / "checkpoints" / "18" / "files.json").write_text(text, errors="surrogateescape")
    begin(folder)
    assert (folder / "damaged" / "18").is_dir()


@pytest.mark.parametrize("how", ["altered", "empty", "no progress", "another format", "other numbers"])
def test_without_proof_nothing_is_called_damaged(folder, how):
    """A checkpoint of an earlier version, which has no list of files; or one whose files are what was written, but that
    the library cannot read, or reads with other numbers."""
    checkpoint = folder / "checkpoints" / "18"
    if how == "other numbers":
        change_progress(folder, 18, checksum=True, checksum_of_words=1)
    elif how == "another format":
        (checkpoint / "state" / "manifest.ocdbt").write_bytes(b"of another version")
        write_list(checkpoint, 18)
    else:
        (checkpoint / LIST).unlink()
        if how == "altered":
            flip(checkpoint / "state" / "manifest.ocdbt")
        elif how == "no progress":
            (checkpoint / "progress" / "metadata").write_text("[]")
        else:
            shutil.rmtree(checkpoint)
            checkpoint.mkdir()
    assert re.search("the checkpoint of step 18 in .* was left as it is; .* or move it away yourself", refusal(folder))


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
    1,
    ("kind", "more"),
    [("memory", 0), ("handles", 0), ("handles", 1), ("handles", 3), ("memory", 2**20), ("memory", 4 * 2**20)],
    by_day=4,
)
def test_without_file_handles_or_memory_nothing_is_called_damaged(folder, kind, more):
    """Nor does it hang: without memory CPython did, once in eleven times."""
    before = content(folder)
    done = python("-c", WITH_FEW, folder, kind, more, timeout=60)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        refused = re.search("Too many open files|start new thread|Cannot allocate memory|RESOURCE_EXHAUSTED", line)
        assert refused or (kind == "handles" and more and line == "done"), done
    assert content(folder) == before


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


@quick(0, "name", ["checkpoints/18/state", "checkpoints/18/progress/metadata", "checkpoints/18", "checkpoints"])
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


@pytest.mark.slow
def test_a_file_that_the_disk_cannot_read_is_no_damage(folder):
    """Reading this file of the kernel is an error of input and output, as on a broken disk."""
    file = largest(folder / "checkpoints" / "18" / "state")
    file.unlink()
    file.symlink_to("/proc/self/mem")
    before = content(folder)
    assert "cannot be read (Input/output error" in python("-c", GO_ON, folder).stdout
    assert content(folder) == before


def test_stopped_before_the_first_epoch_then_told_to_stop_there(tmp_path):
    """The run has no figures yet, neither best nor last."""
    config = dataclasses.replace(JOB, workdir=str(tmp_path), checkpoint_every=2, keep_checkpoints=99)
    train(config)
    for checkpoint in (tmp_path / "checkpoints").iterdir():
        if checkpoint.name != "2":
            shutil.rmtree(checkpoint)
    assert train(dataclasses.replace(config, steps=2)).epochs == []
