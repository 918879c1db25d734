"""The command from start to end: the default recipe, its output and its metrics file."""

import dataclasses
import json
import os
import pty
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx
from launch import environment, train
from marks import quick

from pmapdp.config import Config
from pmapdp.train import train as train_here

START = {"event", "devices", "global_batch_size", "per_device_batch_size", "parameters", "examples", "jax"}
START |= {"state_bytes_on_a_device"}
EPOCH = {"event", "epoch", "step", "train", "test", "learning_rate", "examples_per_second", "step_ms"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """`runs(strategy)`: lines of the metrics file and output of the default recipe; each strategy runs once."""
    folder, done = tmp_path_factory.mktemp("runs"), {}

    def run(strategy: str):
        if strategy not in done:
            file = folder / f"{strategy}.jsonl"
            finished = train("--strategy", strategy, "--metrics-file", file)
            assert finished.returncode == 0, finished.stderr
            done[strategy] = ([json.loads(line) for line in file.read_text().splitlines()], finished.stdout)
        return done[strategy]

    return run


@quick(1, "strategy", ["pmap", "single"])
def test_metrics_file_of_the_default_recipe(runs, strategy):
    (start, *epochs, end), _ = runs(strategy)
    devices = 1 if strategy == "single" else 8
    assert set(start) == START | {field.name for field in dataclasses.fields(Config)}
    expected = {
        "event": "start",
        "strategy": strategy,
        "devices": devices,
        "global_batch_size": 64,
        "jax": jax.__version__,
    }
    expected |= {
        "per_device_batch_size": 64 // devices,
        "parameters": 347_146,
        "examples": {"train": 1437, "test": 360},
    }
    assert start | expected == start

    assert [(epoch["epoch"], epoch["step"]) for epoch in epochs] == [(k, 23 * k) for k in range(1, 21)]
    for epoch in epochs:
        assert set(epoch) == EPOCH
        assert (epoch["train"]["examples"], epoch["test"]["examples"]) == (1437, 360)
        assert min(epoch["examples_per_second"], epoch["step_ms"]) > 0
        assert 0 <= epoch["train"]["accuracy"] <= 1
    assert epochs[-1]["test"]["accuracy"] >= 0.97

    assert set(end) == {"event", "steps", "compile_seconds", "total_seconds"}
    assert (end["event"], end["steps"]) == ("end", 460)
    assert 0 < end["compile_seconds"] < end["total_seconds"]


@pytest.mark.slow
def test_strategies_report_the_same_figures(runs):
    """Rounding differs; over one epoch it stays small, over twenty it may move an example or two."""
    (_, first, *_, last, _), _ = runs("single")
    (_, other_first, *_, other_last, _), _ = runs("pmap")
    for part in ("train", "test"):
        assert other_first[part]["loss"] == pytest.approx(first[part]["loss"], rel=1e-2)
    assert other_last["test"]["accuracy"] == pytest.approx(last["test"]["accuracy"], abs=0.01)
    assert other_last["learning_rate"] == last["learning_rate"]


def test_output_elsewhere_than_on_a_terminal_is_plain(runs):
    lines, output = runs("pmap")
    assert not {"\x1b", "\r"} & set(output)
    for words in ("recipe digits, strategy pmap", "8 simulated CPU devices", "347,146 parameters", "1,437 to train"):
        assert words in output
    assert sum(line.startswith("epoch ") and "  test loss " in line for line in output.splitlines()) == 20
    best, last = max(line["test"]["accuracy"] for line in lines[1:-1]), lines[-2]["test"]["accuracy"]
    assert f"test accuracy: best {best:.4f}" in output
    assert f"last {last:.4f}" in output
    assert "to compile" in output


@pytest.mark.slow
def test_batch_norm_is_ready_after_few_updates(tmp_path):
    """460 updates: running moments that start from 0 and 1 and move by a hundredth would give less than 0.6."""
    file = tmp_path / "metrics.jsonl"
    assert train("--model", "convnet", "--devices", 1, "--metrics-file", file).returncode == 0
    assert json.loads(file.read_text().splitlines()[-2])["test"]["accuracy"] >= 0.97


@pytest.mark.slow
def test_three_epochs_of_adam_differ_by_amplified_rounding_alone(tmp_path):
    """Train and test loss stay within 1 % and 20 %; docs/promises.md has the figures that were measured."""
    losses = []
    for strategy, devices in (("single", 1), ("pmap", 7)):
        file = tmp_path / f"{devices}.jsonl"
        job = ["--model", "convnet", "--global-batch-size", 50, "--epochs", 3, "--no-progress"]
        done = train(*job, "--strategy", strategy, "--devices", devices, "--metrics-file", file)
        assert done.returncode == 0, done.stderr
        epochs = [json.loads(line) for line in file.read_text().splitlines()[1:-1]]
        losses.append([(epoch["train"]["loss"], epoch["test"]["loss"]) for epoch in epochs])
    one, other = np.array(losses)
    assert (abs(other / one - 1) < (0.01, 0.2)).all(), other / one - 1


def test_steps_stop_a_run_in_the_middle_of_an_epoch(tmp_path):
    file = tmp_path / "metrics.jsonl"
    settings = {"metrics_file": str(file), "progress": False, "compile_cache": False}
    train_here(Config(model="mlp", devices=3, steps=25, **settings))
    _, first, second, end = [json.loads(line) for line in file.read_text().splitlines()]
    assert (first["step"], first["train"]["examples"]) == (23, 1437)
    assert (second["step"], second["train"]["examples"]) == (25, 128)
    assert end["steps"] == 25


def test_a_terminal_gets_a_progress_bar():
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "pmapdp.train", "--model", "mlp", "--devices", "2", "--epochs", "1"]
    env = environment({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"})
    process = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs)
    os.close(theirs)
    output = b""
    try:
        while part := os.read(ours, 4096):
            output += part
    except OSError:  # Linux' way to say that the other end is closed
        pass
    os.close(ours)
    text = output.decode()
    assert process.wait() == 0, text
    for words in ("\x1b[", "━", "0/23", "compiling", "epoch 1/1"):
        assert words in text


class WithDropout(nnx.Module):
    def __init__(self, *, rngs, dtype, param_dtype):
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(784, 10, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(x.reshape(len(x), -1)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_what_the_caller_sets_of_64_bits_changes_nothing_and_stays(dtype):
    """Dropout draws other masks with 64 bits; the run has them for float64 alone."""
    config = Config(dtype=dtype, strategy="single", steps=3, epochs=1, progress=False)
    results = []
    for setting in (False, True):
        with jax.enable_x64(setting):
            results.append(train_here(config, model=WithDropout).state.params)
            assert jax.config.read("jax_enable_x64") == setting
    jax.tree.map(np.testing.assert_array_equal, *results)
    assert jax.tree.leaves(results[0])[0].dtype == dtype
