"""The table and the picture of the results, and the bare loops, which do the trainer's work."""

import importlib
import json
import xml.etree.ElementTree as ElementTree

import jax
import numpy as np
import optax
import pytest
from examples import random_split_for, whole_batch
from flax import nnx
from marks import quick
from running import run

from benchmarks import bare, images, summary
from benchmarks.comparisons import comparisons
from pmapdp import cli, steps
from pmapdp.registry import MODELS
from pmapdp.state import Task, build, create_state


def test_the_ratio_is_that_of_the_medians():
    pair = comparisons(peers=False)[0]
    ours, other = [30.0, 10.0, 21.0], [10.0, 11.0, 7.0]
    results = {
        "machine": {"cores": 2, "processor": "x", "devices": "simulated", "python": "3", "jax": "0"},
        "seconds": {"import": 1.0, "first step": 2.0} | dict.fromkeys(summary.TARGETS, 3.0),
        "accumulation": [{"model": "cnn", "unrolled": 2.0, "loop": 8.0}],
        "examples_per_second": {pair.ours.name: ours, pair.other.name: other},
    }
    assert "| 21 (2.10) | 0.95 |" in summary.table(results)
    assert "up to 95% of their median" in summary.table(results)
    assert "| cnn | 2.0 | 8.0 | 4.0 |" in summary.table(results)
    ElementTree.fromstring(summary.picture(results))


def test_page_and_picture_are_those_of_the_results():
    results = json.loads(summary.RESULTS.read_text())
    on_accelerators = "\n".join(summary.rows(json.loads(summary.ACCELERATORS.read_text())))
    page = summary.PAGE.read_text()
    for begin, text in ((summary.BEGIN, summary.table(results)), (summary.BEGIN_ACCELERATORS, on_accelerators)):
        assert text == page.split(begin)[1].split(summary.END)[0].strip()
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


@pytest.mark.slow
def test_the_trainer_on_the_work_of_the_bare_loop(tmp_path):
    """The programs of both print a speed for each epoch."""
    split = random_split_for("cnn", 96)
    np.savez(tmp_path / "data.npz", images=split.inputs, labels=split.labels)
    for name, model in (("ours", "cnn"), ("bare", "mlp")):
        work = [tmp_path / "data.npz", "jit", model, 2, 32, 64, 2]
        out, _ = run(*work, module=f"benchmarks.{name}")
        speeds = [json.loads(line)["examples_per_second"] for line in out.splitlines() if line.startswith("{")]
        assert len(speeds) == 2
        assert min(speeds) > 0


@quick(1, "model", ["cnn", "convnet"])
@quick(2, "strategy", ["single", "pmap", "jit", "shard_map"])
def test_the_bare_step_does_the_trainers_work(float64, model, strategy):
    """The parameters after two updates in float64, against the trainer's on one device; also batch norm and dropout."""
    task = Task(build(MODELS[model], dtype="float64"), optax.sgd(0.1), dtype="float64")
    trainer, devices = steps.make_strategy("single", task, jax.devices()[:1]), 1 if strategy == "single" else 4
    loop = bare.make_loop(model, strategy, jax.devices()[:devices], optimizer=optax.sgd(0.1), dtype="float64")
    state, bare_state = trainer.place_state(create_state(task)), loop.state
    for number in range(2):
        batch = whole_batch(random_split_for(model, 32), np.arange(16 * number, 16 * (number + 1)))
        state, _ = trainer.train_step(state, trainer.place_batch(batch))
        arrays = batch.inputs, batch.labels, batch.indices
        if strategy == "pmap":
            arrays = tuple(x.reshape(devices, -1, *x.shape[1:]) for x in arrays)
        bare_state, _ = loop.step(bare_state, *jax.device_put(arrays, loop.split))
    wanted, found = state.params, nnx.to_pure_dict(bare_state[0])
    jax.tree.map(lambda one, other: np.testing.assert_allclose(other, one, rtol=0, atol=1e-10), wanted, found)


@pytest.mark.slow
def test_a_benchmark_runs():
    out, _ = run("--rounds", 1, "--model", "mlp", module="benchmarks.replicas")
    assert "1 rounds: an update" in out


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("run", ["--rounds", "0"], "--rounds 0 is not a whole number of at least 1: try python -m benchmarks.run"),
        ("run", ["--data-dir", "/proc/nowhere"], "/proc/nowhere"),
        ("checkpoints", ["--epochs", "3"], "--epochs 3 leaves too little"),
        ("replicas", ["--bogus"], "'--bogus'"),
        ("replicas", ["--strategy", "single"], "--check-replicas 100 compares devices"),
        ("accumulation", ["--rounds", "x"], "--rounds x is not"),
        ("time_to_99", ["--seeds", "0"], "--seeds 0 is not"),
        ("time_to_99", ["--data-dir", "/proc/nowhere"], "mnist is not in /proc/nowhere"),
        ("bare", [], "are required"),
        ("ours", ["/no/file", "pmap", "cnn", "2", "64", "128", "1"], "/no/file cannot be read"),
        ("bare", ["/no/file", "pmap", "cnn", "2", "64", "128", "1"], "/no/file cannot be read"),
    ],
)
def test_a_mistake_is_one_sentence(name, options, said, capsys):
    assert cli.run(importlib.import_module(f"benchmarks.{name}").main, options) == 2
    output = capsys.readouterr()
    assert (output.out, output.err.count("\n")) == ("", 1)
    assert output.err.startswith("error: ")
    assert said in output.err


@pytest.mark.slow
def test_reading_images_is_measured(capsys):
    images.main(["--images", "130"])
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [
        "decoding",
        "training",
        "both",
        "both",
    ]
