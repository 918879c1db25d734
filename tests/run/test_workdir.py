"""The folder of a run: what it holds, who may use it, and which are refused."""

import gzip
import json
import os
import signal
import struct
import time
from pathlib import Path

import pytest
from points import DATA, Net
from points import run as train_points
from running import run, start

from pmapdp.config import Config
from pmapdp.errors import UserError
from pmapdp.run.report import LinesFile
from pmapdp.run.workdir import identity, lock_workdir, read_config, read_run, with_full_paths
from pmapdp.train import load_run

JOB = ["--model", "mlp", "--devices", 2, "--epochs", 2]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "run"
    out, _ = run(*JOB, "--workdir", folder, "--profile")
    return folder, out


def scalars(folder: Path) -> dict[tuple[str, int], float]:
    """The figures in TensorBoard's files by tag and step, read by the record format (length, CRC, data, CRC)."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    for file in sorted(folder.glob("events.out.tfevents.*")):
        content = file.read_bytes()
        while content:
            (length,) = struct.unpack("<Q", content[:8])
            event = Event.FromString(content[12 : 12 + length])
            found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
            content = content[12 + length + 4 :]
    return found


def test_holds_what_the_page_says(finished):
    folder, out = finished
    assert {"config.json", "checkpoints", "metrics.jsonl", "log.txt", "profile"} <= set(os.listdir(folder))
    assert read_config(folder).model == "mlp"
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["start", "epoch", "epoch", "end"]
    assert "epoch 2/2" in (folder / "log.txt").read_text()
    assert "epoch 2/2" in out
    found = scalars(folder)
    tags = ("train/loss", "train/accuracy", "test/loss", "test/accuracy", "learning_rate", "examples_per_second")
    assert set(found) == {(tag, step) for tag in tags for step in (23, 46)} | {("configuration/text_summary", 0)}
    assert found["test/loss", 46] == pytest.approx(lines[2]["test"]["loss"], rel=1e-6)


def test_profile_is_a_trace_with_the_longest_operations(finished):
    folder, out = finished
    with gzip.open(next(folder.glob("profile/**/perfetto_trace.json.gz")), "rt") as file:
        assert json.load(file)["traceEvents"]
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


def test_in_use_by_a_running_process_and_free_after_it(tmp_path):
    job = ["--model", "mlp", "--devices", 1, "--epochs", 5000, "--workdir", tmp_path / "run"]
    process = start(*job)
    try:
        while not (tmp_path / "run" / "checkpoints").exists():
            assert process.poll() is None
            time.sleep(0.05)
        assert f"in use by process {process.pid}" in run(*job, status=2)[1]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    run(*job, "--steps", 1)  # the lock did not outlive its owner


def test_no_checkpoint_yet(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        load_run(tmp_path)
    with lock_workdir(str(tmp_path / "run"), Config(), 64), pytest.raises(UserError, match="holds no checkpoint"):
        load_run(tmp_path / "run")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *((text, "name another folder") for text in ("", "null", "[]", "{}", "[" * 10_000, '{"config": ', "\0")),
        ('{"format": "pmapdp run 1", "config": {}, "global_batch_size": 64}', "of pmapdp 0.2, .* use 0.2 for it"),
        ('{"format": "pmapdp run 2", "config": {"epochs": "5"}, "global_batch_size": 64}', "name another folder"),
        ('{"format": "pmapdp run 2", "config": {"new": 5}, "global_batch_size": 64}', "name another folder"),
    ],
)
def test_a_config_json_of_something_else_is_refused(tmp_path, text, sentence):
    (tmp_path / "config.json").write_text(text)
    for use in (lambda: read_run(tmp_path), lambda: train_points(workdir=str(tmp_path))):
        with pytest.raises(UserError, match=sentence):
            use()
    assert (tmp_path / "config.json").read_text() == text


@pytest.mark.parametrize("name", ["pmapdp.lock", "config.json"])
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path, name):
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match="named pipe"):
        train_points(workdir=str(tmp_path))


@pytest.mark.parametrize("workdir", ["/proc/pmapdp", "file", "a\\b", "x" * 300])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path, monkeypatch, workdir):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with pytest.raises(UserError, match=r"--workdir .*(runs/first|leave it out)"):
        train_points(workdir=workdir)
    assert os.listdir(tmp_path) == ["file"]


def test_paths_are_whole_and_a_moved_project_is_the_same_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    given = {"model": "net.py:Net", "dataset": "pictures", "schedule": "rate.py:rate", "workdir": "run"}
    config = with_full_paths(Config(**given))
    assert {name: getattr(config, name) for name in given} == {
        name: f"{tmp_path}/{each}" for name, each in given.items()
    }
    assert with_full_paths(Config()) == Config()
    (tmp_path / "moved" / "pictures").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "moved")
    assert identity(with_full_paths(Config(**given)), 64) == identity(config, 64)


def test_half_a_line_is_ended_first(tmp_path):
    (tmp_path / "lines").write_bytes(b'{"event": "start"}\n{"event": "ep')
    file = LinesFile(tmp_path / "lines")
    file.line("{}")
    file.close()
    assert (tmp_path / "lines").read_text().splitlines() == ['{"event": "start"}', '{"event": "ep', "{}"]


def test_a_run_of_python_values_names_them(tmp_path):
    train_points(workdir=str(tmp_path / "run"))
    config = read_config(tmp_path / "run")
    assert (config.model, config.dataset, config.global_batch_size) == ("Net", "arrays", 20)
    assert load_run(tmp_path / "run", model=Net)[2]["train"]["examples"] == DATA.train.examples
