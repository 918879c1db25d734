"""What a run refuses, leaving every file as it is: folders of others, damaged files, the limits of a disk."""

import contextlib
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from disks import small_disk
from launch import environment, python
from marks import quick
from running import run

from pmapdp.config import Config
from pmapdp.errors import UserError
from pmapdp.job import prepare
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.checksums import crc32
from pmapdp.run.damage import DamagedError, outside_cause
from pmapdp.run.log import LinesFile
from pmapdp.run.resume import beginning, open_checkpoints
from pmapdp.run.tensorboard import TensorBoard
from pmapdp.train import train
from pmapdp.trained import load_run, read_config

SETTINGS = dataclasses.asdict(Config())
JOB = Config(
    model="mlp", strategy="single", devices=1, optimizer="sgd", global_batch_size=256, epochs=3, progress=False
)
COMMAND = ["--model", "mlp", "--strategy", "single", "--devices", 1, "--optimizer", "sgd", "--no-progress"]
COMMAND += ["--global-batch-size", 256, "--epochs", 3]
NET = """
from flax import nnx

class Net(nnx.Module):
    def __init__(self, *, rngs, dtype, param_dtype):
        self.hidden = nnx.Linear(784, 16, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.logits = nnx.Linear(16, 10, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, inputs, context):
        return self.logits(nnx.relu(self.hidden(inputs.reshape(inputs.shape[0], -1))))
"""


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
        beginning(job, open_checkpoints(job, dataclasses.asdict(config), stack))


def refusal(folder: Path, **changes: object) -> str:
    """The sentence with which a folder is refused, after which it is as it was before."""
    before = content(folder)
    with pytest.raises(UserError) as caught:
        begin(folder, **changes)
    assert content(folder) == before
    return str(caught.value)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    train(dataclasses.replace(JOB, workdir=str(folder)))
    return folder


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of a finished run of three epochs of six updates."""
    return shutil.copytree(finished, tmp_path / "run")


# Folders that are no runs of ours


@pytest.mark.parametrize("name", ["checkpoints/100/x", "metrics.jsonl", "log.txt"])
def test_a_folder_of_others_is_refused_and_left_as_it_is(tmp_path, name):
    file = tmp_path / "folder" / name
    file.parent.mkdir(parents=True)
    file.write_text("mine")
    sentence = refusal(tmp_path / "folder")
    assert f"holds {'/'.join(name.split('/')[:2])}, and no config.json says that a run of pmapdp wrote it" in sentence
    assert "name a new folder" in sentence


@pytest.mark.parametrize(
    "text",
    [
        *("", "null", "[]", '"text"', "{}", "7", "NaN", '{"config": {}}', "[" * 10_000, '{"config": ', "\0"),
        '{"config": [], "global_batch_size": 64}',
        '{"config": {}, "global_batch_size": "64"}',
        '{"config": {}, "global_batch_size": 64, "format": "another"}',
    ],
)
def test_a_config_json_that_no_run_wrote_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    assert "name another folder" in refusal(tmp_path)
    with pytest.raises(UserError, match="name another folder"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("model", 5), ("seed", "0"), ("epochs", None), ("learning_rate", []), ("devices", -1)]
)
def test_a_setting_of_another_type_is_refused(folder, name, value):
    file = folder / "config.json"
    document = json.loads(file.read_text())
    document["config"][name] = value
    file.write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"name another folder|must be at least 1"):
        read_config(folder)
    if name != "devices":  # which a run may change
        assert f"{name} (" in refusal(folder)


def test_a_setting_that_an_earlier_version_lacks_has_its_default(folder):
    """Both in config.json and in what a checkpoint belongs to; any field may have come later."""
    document = json.loads((folder / "config.json").read_text())
    del document["config"]["seed"]
    (folder / "config.json").write_text(json.dumps(document))
    kept = json.loads((folder / "checkpoints" / "18" / "progress" / "metadata").read_text())["belongs_to"]
    del kept["seed"]
    change_progress(folder, 18, checksum=True, belongs_to=kept)
    assert "seed (0 there, 7 now)" in refusal(folder, seed=7)
    begin(folder)
    assert (folder / "checkpoints" / "18").is_dir()
    assert read_config(folder).seed == 0


@pytest.mark.parametrize("name", ["pmapdp.lock", "config.json", "log.txt", "metrics.jsonl"])
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"named pipe|holds {name}"):
        begin(tmp_path)


@pytest.mark.parametrize("name", ["", "gs://bucket/run", "s3://bucket/run", "x" * 300, "run\0"])
def test_a_name_that_is_no_folder_is_refused(name):
    with pytest.raises(UserError, match=r"--workdir .*(runs/first|give it a name|mount the bucket)"):
        begin(name)


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "log.txt", "pmapdp.lock"])
def test_a_metrics_file_that_is_a_file_of_the_run_is_refused(folder, name):
    assert f"{name} is written by the run" in refusal(folder, metrics_file=os.path.relpath(folder / name))
    begin(folder, metrics_file=str(folder / "mine.jsonl"))


def test_links_that_lead_nowhere_are_refused(folder, tmp_path):
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").symlink_to(tmp_path / "nowhere" / "at all")
    assert "cannot be used" in refusal(folder)
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(folder / "config.json")
    assert "config.json" in refusal(folder)
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"--workdir .* runs/first"):
        begin(tmp_path / "link")


# What a checkpoint belongs to


def test_checkpoints_of_another_run_are_refused_also_beside_another_config_json(folder, tmp_path):
    train(dataclasses.replace(JOB, workdir=str(tmp_path / "other"), seed=7, steps=3))
    shutil.copy(tmp_path / "other" / "config.json", folder / "config.json")
    sentence = refusal(folder, seed=7)
    assert "the checkpoint of step 18" in sentence
    assert "seed (0 there, 7 now)" in sentence
    with pytest.raises(UserError, match=r"the checkpoint of step 18 .*seed \(0 there, 7 now\)"):
        load_run(folder)


def test_without_config_json_no_checkpoint_is_taken(folder):
    (folder / "config.json").unlink()
    assert "no config.json says" in refusal(folder, seed=7)


def test_checkpoints_of_another_model_of_ones_own_are_no_damage(tmp_path):
    """A file of Python keeps its name when somebody edits it."""
    (tmp_path / "net.py").write_text(NET)
    flags = ["--model", f"{tmp_path / 'net.py'}:Net", "--workdir", tmp_path / "run", "--steps", 2, "--no-progress"]
    run(*flags)
    for old, new, said in (("16", "8", "hidden.bias has the shape [16], now [8]"), ("hidden", "h", "now [16]")):
        (tmp_path / "net.py").write_text(NET.replace(old, new))
        before = content(tmp_path / "run" / "checkpoints")
        for module, arguments in (("train", flags), ("evaluate", [tmp_path / "run"])):
            _, err = run(*arguments, module=f"pmapdp.{module}", status=2)
            assert "the checkpoint of step 2 in " in err
            assert said in err
        assert content(tmp_path / "run" / "checkpoints") == before


# Damage


def change_progress(folder: Path, step: int, /, *, checksum: bool = False, **changes: object) -> None:
    """Alter the progress in a checkpoint; with or without the checksum that belongs to it."""
    file = folder / "checkpoints" / str(step) / "progress" / "metadata"
    progress = json.loads(file.read_text()) | changes
    if checksum:
        progress["crc32"] = crc32({name: value for name, value in progress.items() if name != "crc32"}, step)
    file.write_text(json.dumps(progress))


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
from pmapdp.trained import read_config

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
from pmapdp.trained import read_config

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


# Files that lines are appended to


def test_half_a_line_is_ended_first(tmp_path):
    (tmp_path / "lines").write_bytes(b'{"event": "start"}\n{"event": "ep')
    file = LinesFile(tmp_path / "lines")
    file.event("epoch", epoch=1)
    file.close()
    assert (tmp_path / "lines").read_text().splitlines() == [
        '{"event": "start"}',
        '{"event": "ep',
        '{"event": "epoch", "epoch": 1}',
    ]


def test_a_folder_that_takes_no_file_of_tensorboard():
    with pytest.raises(UserError, match=r"/proc cannot be written \(.*\): name a file in a folder that exists"):
        TensorBoard(Path("/proc"))


def test_an_error_of_the_disk_is_an_error_of_the_command(tmp_path):
    """Nothing is kept in a buffer, so the error comes with the line, and once."""
    with small_disk(tmp_path / "disk", "size=8k") as disk:
        file = LinesFile(disk / "lines", "--metrics-file lines")
        file.line("x" * 3000)
        with pytest.raises(UserError, match="--metrics-file lines cannot be written"):
            file.line("x" * 6000)
        file.close()
        (disk / "lines").unlink()
        assert "No space left" in refused(*COMMAND, "--workdir", disk / "run")[1]
        (disk / "x").write_bytes(bytes(shutil.disk_usage(disk).free))
        (disk / "metrics").touch()
        assert "No space left" in refused(*COMMAND, "--metrics-file", disk / "metrics")[1]
        another = disk / "another"
        assert f"--workdir {another} cannot be written (No space" in refused(*COMMAND, "--workdir", another)[1]


def refused(*arguments: object) -> tuple[str, str]:
    """stdout, and the one line on stderr, of a command that refuses its arguments."""
    out, err = run(*arguments, status=2)
    assert err.count("\n") == 1, err
    return out, err


@quick(1, ("options", "sentence"), [("ro", "Read-only file system"), ("nr_inodes=2", "No space left on device")])
def test_checkpoints_that_cannot_be_written_end_the_run(tmp_path, options, sentence):
    with small_disk(tmp_path / "run" / "checkpoints", options):
        out, err = refused(*COMMAND, "--workdir", tmp_path / "run")
    assert (out == "") == (options == "ro")  # that is found out before the first update
    assert sentence in err
