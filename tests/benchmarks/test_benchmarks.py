"""The tables of the results, and the bare loops, which do the trainer's work."""

import importlib
import json
import re

import jax
import numpy as np
import optax
import pytest
from examples import random_split_for, whole_batch
from flax import nnx
from marks import quick
from running import run

from benchmarks import accelerators, bare, summary
from benchmarks.comparisons import comparisons
from pmapdp import cli, steps
from pmapdp.registry import MODELS
from pmapdp.state import Task, build, create_state


def test_the_ratio_is_that_of_the_medians():
    pair = comparisons(peers=False)[0]
    results = {
        "machine": {"cores": 2, "processor": "x", "devices": "simulated", "python": "3", "jax": "0"},
        "seconds": {"import": 1.0, "first step": 2.0} | dict.fromkeys(summary.TARGETS, 3.0),
        "examples_per_second": {pair.ours.name: [30.0, 10.0, 21.0], pair.other.name: [10.0, 11.0, 7.0]},
    }
    assert "| 21 (2.10) | 0.95 |" in summary.table(results)
    assert "up to 95% of their median" in summary.table(results)


def test_the_page_has_the_results():
    results = json.loads(summary.RESULTS.read_text())
    assert summary.table(results) == summary.PAGE.read_text().split(summary.BEGIN)[1].split(summary.END)[0].strip()
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
    trainer, devices = steps.single.make_strategy(task, jax.devices()[:1]), 1 if strategy == "single" else 4
    loop = bare.make_loop(task.model, strategy, jax.devices()[:devices], optax.sgd(0.1))
    state, bare_state = trainer.place_state(create_state(task)), loop.state
    for number in range(2):
        batch = whole_batch(random_split_for(model, 32), np.arange(16 * number, 16 * (number + 1)))
        state, _ = trainer.train_step(state, trainer.place_batch(batch))
        arrays = batch.inputs, batch.labels, batch.indices
        bare_state, _ = loop.step(bare_state, *bare.place(arrays, loop, strategy))
    wanted, found = state.params, nnx.to_pure_dict(bare_state[0])
    jax.tree.map(lambda one, other: np.testing.assert_allclose(other, one, rtol=0, atol=1e-10), wanted, found)


@pytest.mark.slow
def test_accelerators(tmp_path, monkeypatch):
    """On simulated devices, with images enough for two updates of the smallest work."""
    monkeypatch.setattr(accelerators, "WORKS", accelerators.WORKS[:1])
    monkeypatch.setattr(accelerators, "measure_pytorch", lambda updates: {"CNN, 64": {"eager": 1.0, "compiled": 2.0}})
    file = tmp_path / "found.json"
    assert cli.run(accelerators.main, ["--rounds", "1", "--updates", "2", "--file", str(file)]) == 0
    *_, row, _, machine = summary.rows_of_accelerators(json.loads(file.read_text()))
    assert re.fullmatch(r"\| CNN, 64 \| [\d,]+ \([\d.]+; .* to .*\) \| .* \| [\d,]+ \| 1 \| 2 \|", row)
    assert machine.startswith("8 x cpu, jax ")


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "run",
            ["--rounds", "0"],
            "--rounds: 0 is not a whole number of at least 1: try python -m benchmarks.run",
        ),
        ("run", ["--data-dir", "/proc/nowhere"], "/proc/nowhere"),
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
