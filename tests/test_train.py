"""The command from start to end.

The default recipe, its output and its metrics file.
"""

import contextlib
import dataclasses
import functools
import io
import json
import re
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import rich.progress
import small_job
from launch import train
from points import run

from pmapdp import cli
from pmapdp.config import Config
from pmapdp.metrics import Meter
from pmapdp.run.progress import Progress
from pmapdp.run.report import Report
from pmapdp.train import main
from pmapdp.train import train as train_in_python

START = {
    "event",
    "devices",
    "global_batch_size",
    "per_device_batch_size",
    "parameters",
    "examples",
    "jax",
}
START |= {"state_bytes_on_a_device"}
EPOCH = {
    "event",
    "epoch",
    "step",
    "train",
    "test",
    "learning_rate",
    "examples_per_second",
    "step_ms",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Lines of the metrics file and output of two epochs of the default recipe, but for
    its larger model.
    """
    file = tmp_path_factory.mktemp("finished") / "metrics.jsonl"
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        job = [
            "--model",
            "mlp",
            "--devices",
            "2",
            "--epochs",
            "2",
            "--global-batch-size",
            "479",
        ]
        assert cli.run(main, [*job, "--metrics-file", str(file)]) == 0
    return [
        json.loads(line) for line in file.read_text().splitlines()
    ], output.getvalue()


def test_metrics_file_of_a_recipe(finished):
    (start, *epochs, end), _ = finished
    assert set(start) == START | {field.name for field in dataclasses.fields(Config)}
    expected = {
        "event": "start",
        "strategy": "pmap",
        "devices": 2,
        "global_batch_size": 479,
        "jax": jax.__version__,
    }
    expected |= {
        "per_device_batch_size": 240,
        "parameters": 669_706,
        "examples": {"train": 1437, "test": 360},
    }
    assert start | expected == start
    assert [(epoch["epoch"], epoch["step"]) for epoch in epochs] == [(1, 3), (2, 6)]
    for epoch in epochs:
        assert set(epoch) == EPOCH
        assert (epoch["train"]["examples"], epoch["test"]["examples"]) == (1437, 360)
        assert min(epoch["examples_per_second"], epoch["step_ms"]) > 0
        assert 0 <= epoch["train"]["accuracy"] <= 1
    assert set(end) == {"event", "steps", "compile_seconds", "total_seconds"}
    assert (end["event"], end["steps"]) == ("end", 6)
    assert 0 < end["compile_seconds"] < end["total_seconds"]


def test_output_elsewhere_than_on_a_terminal_is_plain(finished):
    lines, output = finished
    assert not {"\x1b", "\r"} & set(output)
    for words in (
        "run      strategy pmap",
        "2 simulated CPU devices",
        "669,706 parameters",
        "1,437 to train",
    ):
        assert words in output
    assert (
        sum(
            line.startswith("epoch ") and "  test loss " in line
            for line in output.splitlines()
        )
        == 2
    )
    best = max(line["test"]["accuracy"] for line in lines[1:-1])
    last = lines[-2]["test"]["accuracy"]
    for words in (f"test accuracy: best {best:.4f}", f"last {last:.4f}", "to compile"):
        assert words in output


@pytest.mark.slow
def test_the_default_recipe_reaches_its_accuracy(tmp_path):
    """The first command of the README, as a user starts it, but for the number of
    devices, which changes no result.
    """
    done = train("--devices", 1, "--metrics-file", tmp_path / "metrics.jsonl")
    assert done.returncode == 0, done.stderr
    assert "recipe digits, strategy pmap" in done.stdout
    last = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-2])
    assert (last["epoch"], last["test"]["examples"]) == (20, 360)
    assert last["test"]["accuracy"] >= 0.97


@pytest.mark.slow
def test_batch_norm_is_ready_after_few_updates(tmp_path):
    """92 updates: running moments that start from 0 and 1 and move by a hundredth would
    give less than 0.6.
    """
    file = tmp_path / "metrics.jsonl"
    assert (
        train(
            "--model", "convnet", "--devices", 1, "--epochs", 4, "--metrics-file", file
        ).returncode
        == 0
    )
    assert json.loads(file.read_text().splitlines()[-2])["test"]["accuracy"] >= 0.97


def test_steps_stop_a_run_in_the_middle_of_an_epoch(tmp_path):
    file = tmp_path / "metrics.jsonl"
    run(metrics_file=str(file), epochs=2, steps=7)
    _, first, second, end = [json.loads(line) for line in file.read_text().splitlines()]
    assert (first["step"], first["train"]["examples"]) == (5, 100)
    assert (second["step"], second["train"]["examples"]) == (7, 40)
    assert end["steps"] == 7


def test_progress_is_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr("pmapdp.run.report.SECONDS_BETWEEN_LINES", 0.0)
    run(progress=True)
    line = (
        r"\nepoch 1/1  update 4/5  loss \d\.\d+  accuracy .* examples/s  \d+ s left\n"
    )
    assert re.search(line, capsys.readouterr().out)


def test_the_number_of_an_epoch_is_as_wide_as_the_last_one(capsys):
    """The columns stay where they are at epoch 10."""
    run(epochs=12, steps=3)
    assert "\nepoch  1/12  train loss" in capsys.readouterr().out


class Terminal(io.StringIO):
    """A file that says that it is a terminal."""

    def isatty(self):
        return True


def test_a_terminal_gets_a_progress_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    with contextlib.redirect_stdout(Terminal()) as output:
        run(progress=True)
    for words in ("\x1b[", "━", "0/5", "compiling", "epoch 1/1"):
        assert words in output.getvalue()


def test_the_bar_shows_the_newest_losses_also_when_an_epoch_begins(monkeypatch):
    """The mean of the epoch before would belong to older weights."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("pmapdp.run.report.SECONDS_BETWEEN_REFRESHES", 0.0)
    monkeypatch.setattr("pmapdp.run.report.READ_TOGETHER", 2)
    losses = []

    def add_up(meter, rows):
        original(meter, rows)
        losses.extend(loss for _, loss in list(meter.losses)[-len(rows) :])

    original = Meter.add_up
    monkeypatch.setattr(Meter, "add_up", add_up)
    with contextlib.redirect_stdout(Terminal()) as output:
        run(progress=True, epochs=2)
    second_epoch = re.findall(r"epoch 2/2  loss (\d\.\d{4})", output.getvalue())
    newest = (losses[3] + losses[4]) / 2  # of the five updates of the first epoch
    assert second_epoch[0] == f"{newest:.4f}"


def test_the_bar_reaches_each_end_and_its_time_stays_in_its_place(monkeypatch):
    """Also if the last update of an epoch comes soon after the one before.

    Without rich's thread, which draws every 0.1 s, by luck one of them.
    """
    without_thread = functools.partialmethod(
        rich.progress.Progress.__init__, auto_refresh=False
    )
    monkeypatch.setattr(rich.progress.Progress, "__init__", without_thread)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("pmapdp.run.report.SECONDS_BETWEEN_REFRESHES", 1000.0)
    with contextlib.redirect_stdout(Terminal()) as output:
        run(progress=True, epochs=2, steps=7)
    lines = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", output.getvalue()).splitlines()
    ends = [line for line in lines if "━" in line]
    assert any(" 5/7 " in line for line in ends)
    assert " 7/7 " in ends[-1]
    time = re.compile(r"(--:--|\d:\d\d)(?= )")
    assert len({time.search(line).end() for line in ends}) == 1


@pytest.mark.parametrize(("columns", "cells"), [(80, 12), (120, 52)])
def test_the_bar_is_as_wide_as_the_terminal_allows(monkeypatch, columns, cells):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(columns))
    with contextlib.redirect_stdout(Terminal()) as output:
        run(progress=True)
    lines = re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", output.getvalue()).splitlines()
    bars = [line for line in lines if "compiling" in line]
    assert bars
    assert {line.count("━") for line in bars} == {cells}
    assert max(map(len, lines)) <= columns


def test_the_bar_always_shows_a_loss(monkeypatch):
    """It comes late in each epoch, so the bar keeps the last one."""
    texts = []
    update = rich.progress.Progress.update

    def keep_text(self, task, **options):
        texts.append(options["description"])
        update(self, task, **options)

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("pmapdp.run.report.SECONDS_BETWEEN_REFRESHES", 0.0)
    monkeypatch.setattr(rich.progress.Progress, "update", keep_text)
    with contextlib.redirect_stdout(Terminal()):
        run(progress=True, epochs=3, steps=None)
    assert any(text.startswith("epoch 3/3") for text in texts)
    beginning = re.compile(r"epoch \d/3  loss \d\.\d{4}(  |$)")
    assert all(beginning.match(text) for text in texts)


class Bar:
    """A progress bar that keeps its texts."""

    task_ids = (0,)

    def __init__(self):
        self.texts = []

    def update(self, task, completed, description, refresh):
        self.texts.append(description)


@pytest.mark.parametrize("has_bar", [False, True])
def test_a_speed_counts_finished_updates_and_the_bar_s_is_steady(has_bar):
    """The host queues two updates ahead of the devices, which make one of 20 examples
    in 0.1 s. The bar waits for ten, and a second epoch begins with its last speed.
    """
    lines = []
    bar = Bar()
    batches = SimpleNamespace(per_epoch=14, batch_size=20)
    report = SimpleNamespace(
        job=SimpleNamespace(batches={"train": batches}, total_steps=28),
        bar=bar if has_bar else None,
        newest_loss="loss 1.0000",
        newest_speed="",
        name_epoch=lambda number: f"epoch {number}/2",
        read_newest_loss=lambda meter: None,
        print_line=lines.append,
    )
    for epoch in range(2):
        meter = Meter()
        for queued in range(1, 15):
            meter.timed_updates = queued
            meter.timed_examples = 20 * queued
            meter.seconds = 0.1 * max(queued - 2, 0.01)
            progress = Progress(report.job, 14 * epoch + queued)
            Report.show_progress(report, progress, meter)
    if has_bar:
        shown = [text.count("  200 examples/s") for text in bar.texts]
        assert shown == 11 * [0] + 17 * [1]
        assert "".join(bar.texts).count("examples/s") == 17
    else:
        assert len(lines) == 2 * 12
        assert all("  200 examples/s  " in line for line in lines)
        assert lines[0].endswith("  2 s left")  # 25 updates


def test_what_the_caller_sets_of_64_bits_changes_nothing_and_stays():
    """Dropout draws other masks with 64 bits; the run has them only for float64."""
    results = []
    for setting in (False, True):
        with jax.enable_x64(setting):
            results.append(
                run(small_job.Net, strategy="single", devices=1, steps=3).state.params
            )
            assert jax.config.read("jax_enable_x64") == setting
    jax.tree.map(np.testing.assert_array_equal, *results)
    assert jax.tree.leaves(results[0])[0].dtype == "float32"


def test_the_end_says_where_a_run_is_saved_and_how_to_go_on(tmp_path, capsys):
    folder = tmp_path / "my run"
    settings = {"workdir": str(folder), "epochs": 2}
    run(**settings, steps=3)
    saved = f"saved in {folder}; "
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{saved}to go on, leave out --steps"
    assert (folder / "log.txt").read_text().splitlines() == lines
    run(**settings)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{saved}to go on, raise --epochs"
    run(**settings)
    assert "no update was left" in capsys.readouterr().out.splitlines()[-2]
    assert run(**settings | {"epochs": 3}).epochs[-1]["epoch"] == 3
    capsys.readouterr()
    # The command can't evaluate a model that only this program has, as above.
    built_in = tmp_path / "built in"
    job = ["--strategy", "single", "--model", "mlp", "--steps", "1"]
    main([*job, "--workdir", str(built_in)])
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"evaluate it with python -m pmapdp.evaluate '{built_in}'"
    run()
    assert capsys.readouterr().out.splitlines()[-1].startswith("not saved: add --workd")


@pytest.mark.nightly
def test_label_smoothing_lifts_the_accuracy_on_digits_and_the_loss():
    """The reason why it's the default, as its comment in config.py says."""
    results = {}
    for smoothing in (0.0, 0.1):
        config = Config(strategy="single", label_smoothing=smoothing, progress=False)
        results[smoothing] = train_in_python(config).epochs[-1]["test"]
    assert results[0.1]["accuracy"] > results[0.0]["accuracy"] + 0.005
    assert results[0.1]["loss"] > 1.5 * results[0.0]["loss"]
