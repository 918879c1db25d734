"""The table and the picture of the results, and the bare loops, which do the trainer's work."""

import importlib
import json
import xml.etree.ElementTree as ElementTree

import jax
import numpy as np
import pytest
from examples import random_split
from marks import quick
from running import run

from benchmarks import bare, summary
from benchmarks.comparisons import comparisons
from pmapdp.command.ending import run_command


def test_the_ratio_is_that_of_the_medians():
    pair = comparisons(peers=False)[0]
    ours, other = [30.0, 10.0, 21.0], [10.0, 11.0, 7.0]
    results = {
        "machine": {"cores": 2, "processor": "x", "devices": "simulated", "python": "3", "jax": "0"},
        "seconds": {"import": 1.0, "first step": 2.0},
        "examples_per_second": {pair.ours.name: ours, pair.other.name: other},
    }
    assert "| 21 (2.10) |  |  |  | 0.95 |" in summary.table(results)
    assert "up to 95% of their median" in summary.table(results)
    ElementTree.fromstring(summary.picture(results))


def test_readme_and_picture_are_those_of_the_results():
    results = json.loads(summary.RESULTS.read_text())
    readme = summary.PAGE.read_text()
    assert summary.table(results) == readme.split(summary.BEGIN)[1].split(summary.END)[0].strip()
    # Its words, with all ratios: where they are drawn is up to the version of matplotlib.
    made, kept = ElementTree.fromstring(summary.picture(results)), ElementTree.parse(summary.PICTURE)
    words, found = ([each.text for each in picture.findall(".//{*}text")] for picture in (made, kept))
    assert len(words) > 2 * len(summary.measured(results))
    assert words == found


def test_every_comparison_was_measured_in_as_many_rounds_three_at_least():
    results = json.loads(summary.RESULTS.read_text())
    assert len(summary.measured(results)) == len(comparisons(peers=True))
    (rounds,) = {len(values) for values in results["examples_per_second"].values()}
    assert rounds >= 3


@quick(1, "plain", [False, True])
@pytest.mark.parametrize("strategy", ["pmap", "jit", "shard_map"])
def test_the_bare_step_is_that_of_one_device(strategy, plain):
    split = random_split(16, seed=0)

    def after_one(name, devices, plain):
        step, whole, place = bare.make_step("cnn", name, devices, plain)
        parameters = jax.device_put(bare.initial_parameters("cnn"), whole)
        batch = split.inputs, split.labels
        if name == "pmap":
            batch = split.inputs.reshape(len(devices), -1, 28, 28, 1), split.labels.reshape(len(devices), -1)
        return step(parameters, jax.device_put(bare.OPTIMIZER.init(parameters), whole), *jax.device_put(batch, place))

    *_, one_loss = after_one("single", jax.devices()[:1], True)
    *_, loss = after_one(strategy, jax.devices()[:4], plain)
    np.testing.assert_allclose(loss, one_loss, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("checkpoints", ["--epochs", 7, "--every", 3, "--model", "mlp", "--devices", 2], "2 ratios: median"),
        ("convolution", ["--rounds", 1], "times as fast"),
        ("replicas", ["--rounds", 1, "--model", "mlp"], "1 rounds: an update"),
    ],
)
def test_runs(name, options, said):
    assert said in run(*options, module=f"benchmarks.{name}")[0]


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("run", ["--rounds", "0"], "--rounds 0 is not a whole number of at least 1: try python -m benchmarks.run"),
        ("run", ["--data-dir", "/proc/nowhere"], "/proc/nowhere"),
        ("checkpoints", ["--epochs", "3"], "--epochs 3 leaves too little"),
        ("replicas", ["--bogus"], "'--bogus'"),
        ("replicas", ["--strategy", "single"], "--check-replicas 100 compares devices"),
        ("convolution", ["--bogus"], "unrecognized arguments: --bogus: try python -m benchmarks.convolution"),
        ("scaling.__main__", ["vgg"], "invalid choice: 'vgg'"),
        ("time_to_99", ["--seeds", "0"], "--seeds 0 is not"),
        ("time_to_99", ["--data-dir", "/proc/nowhere"], "mnist is not in /proc/nowhere"),
        ("bare", [], "are required"),
        ("bare", ["/no/file", "pmap", "cnn", "2", "64", "128", "1"], "/no/file cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence(name, options, said, capsys):
    assert run_command(importlib.import_module(f"benchmarks.{name}").main, options) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert output.err.startswith("error: ")
    assert said in output.err
