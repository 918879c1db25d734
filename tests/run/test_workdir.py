"""The folder of a run: what it holds, who may use it, and what happens when a write fails."""

import gzip
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running import run, start

from pmapdp.errors import UserError
from pmapdp.recipes import RECIPES
from pmapdp.run.trained import load_run, read_config
from pmapdp.run.workdir import claimed

JOB = ["--model", "mlp", "--devices", 2, "--epochs", 2]


def refused(*arguments, status=2) -> str:
    """The one sentence with which a command refuses its arguments."""
    _, err = run(*arguments, status=status)
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    out, _ = run(*JOB, "--workdir", folder, "--profile")
    return folder, out


def events(folder: Path) -> list:
    """All TensorBoard events in a folder, read by the record format (length, CRC, data, CRC)."""
    from tensorboardX.proto.event_pb2 import Event

    found = []
    for file in sorted(folder.glob("events.out.tfevents.*")):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            found.append(Event.FromString(content[12 : 12 + length]))
            content = content[12 + length + 4 :]
    return found


def test_holds_what_the_readme_says(finished):
    folder, out = finished
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "checkpoints", "metrics.jsonl", "log.txt", "profile"} <= names
    assert read_config(folder).model == "mlp"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "epoch", "epoch", "end"]
    log = (folder / "log.txt").read_text()
    assert "epoch 2/2" in log
    assert "epoch 2/2" in out


def test_tensorboard_files(finished):
    folder, _ = finished
    values = [(value.tag, event.step, value) for event in events(folder) for value in event.summary.value]
    scalars = {(tag, step) for tag, step, value in values if value.HasField("simple_value")}
    for tag in ("train/loss", "train/accuracy", "test/loss", "test/accuracy", "learning_rate", "examples_per_second"):
        assert {(tag, 23), (tag, 46)} <= scalars
    last = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()][-2]
    loss = next(value.simple_value for tag, step, value in values if (tag, step) == ("test/loss", 46))
    assert loss == pytest.approx(last["test_loss"], rel=1e-6)


def test_profile_is_a_trace_with_the_longest_operations(finished):
    folder, out = finished
    trace = next(folder.glob("profile/**/perfetto_trace.json.gz"))
    with gzip.open(trace, "rt") as file:
        assert json.load(file)["traceEvents"]
    assert list(folder.glob("profile/**/*.xplane.pb"))  # what TensorBoard's profiler reads
    longest = [line for line in out.splitlines() if " calls  " in line]
    assert len(longest) == 10
    assert any("psum" in line or "all-reduce" in line for line in longest)  # the name is JAX's or XLA's


def test_the_same_command_again_is_already_done(finished):
    folder, _ = finished
    before = load_run(folder)[2]
    out, _ = run(*JOB, "--workdir", folder)
    assert "restored from the checkpoint of step 46" in out
    assert "test accuracy: best" in out
    assert load_run(folder)[2] == before


@pytest.mark.slow
def test_reading_a_run_prints_no_warnings_and_leaves_what_is_being_written(finished, tmp_path):
    folder, _ = finished
    half_written = folder / "checkpoints" / "99.orbax-checkpoint-tmp"
    half_written.mkdir()
    try:
        out, err = run(folder, "--strategy", "jit", "--devices", 3, module="pmapdp.evaluate")
        assert "360 examples" in out
        assert err == ""
        _, err = run(folder, tmp_path / "model.zip", module="pmapdp.export")
        assert err == ""
        assert half_written.is_dir()
    finally:
        half_written.rmdir()


def test_another_configuration_is_refused_with_its_fields(finished):
    folder, _ = finished
    message = refused("--model", "cnn", "--devices", 2, "--epochs", 2, "--seed", 1, "--workdir", folder)
    assert "model ('mlp' there, 'cnn' now)" in message
    assert "seed (0 there, 1 now)" in message
    assert "use the same or another folder" in message


@pytest.mark.slow
def test_another_recipe_and_another_batch_are_refused(finished):
    folder, _ = finished
    message = refused("blog-mlp", "--dataset", "digits", "--workdir", folder)
    assert "optimizer ('adam' there, 'momentum' now)" in message
    assert "recipe" not in message  # a name alone changes nothing
    assert "global_batch_size (64 there, 32 now)" in refused(*JOB, "--global-batch-size", 32, "--workdir", folder)


@pytest.mark.slow
def test_keeps_the_last_three_and_the_best(tmp_path):
    run("--model", "mlp", "--devices", 1, "--epochs", 6, "--workdir", tmp_path / "run", "--best", "highest:loss")
    kept = {int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {23, 4 * 23, 5 * 23, 6 * 23}  # the loss is highest after the first epoch


def test_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert "cannot be written (File exists)" in refused(*JOB, "--workdir", tmp_path / "file")


def test_an_unwritable_folder_is_refused():
    # Not even root can make a folder in /proc.
    assert "cannot be written" in refused(*JOB, "--workdir", "/proc/pmapdp")


def test_in_use_by_a_running_process_and_free_after_it(tmp_path):
    job = ["--model", "mlp", "--devices", 1, "--epochs", 5000, "--workdir", tmp_path / "run"]
    process = start(*job)
    try:
        while not (tmp_path / "run" / "checkpoints").exists():
            assert process.poll() is None
            time.sleep(0.02)
        message = refused(*job)
        assert f"in use by process {process.pid}" in message
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    run(*job, "--steps", 1)  # the lock did not outlive its owner


def test_no_checkpoint_yet(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        load_run(tmp_path)
    run_folder = tmp_path / "run"
    settings = RECIPES["digits"].config
    with claimed(run_folder, settings, 64), pytest.raises(UserError, match="holds no checkpoint"):
        load_run(run_folder)


@pytest.mark.slow
def test_write_that_fails_in_the_middle_stops_with_a_message_and_the_last_checkpoint_intact(tmp_path):
    """A limit on the size of files, beyond which every write fails.

    Orbax spreads a checkpoint over files as it comes, so the limit is below what the largest single array needs
    (half of 784 x 512 numbers, 0.7 MB packed).
    """
    job = [*JOB, "--epochs", "4", "--optimizer", "sgd"]
    folder = tmp_path / "run"
    run(*job, "--workdir", folder, "--steps", 30)
    kept = load_run(folder)[2]
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000));"
        "from pmapdp.train import main; from pmapdp import cli; sys.exit(cli.run(main))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, job), "--workdir", str(folder), "--no-compile-cache"],
        capture_output=True,
        text=True,
        timeout=120,
        env={name: value for name, value in os.environ.items() if name != "NPROC"},
    )
    assert done.returncode == 2, done.stderr
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("error: a checkpoint could not be written")
    assert load_run(folder)[2] == kept
    run(*job, "--workdir", folder)
    assert load_run(folder)[2]["epoch"] == 4
