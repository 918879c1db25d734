"""The tables of the results, and the bare loops, which do the trainer's work."""

import json
import re

import entry
import jax
import numpy as np
import optax
import pytest
from flax import nnx
from marks import quick

from benchmarks import accelerators, bare, ours, summary
from pmapdp import __version__, steps
from pmapdp.registry import MODELS
from pmapdp.state import Task, build, create_state


def test_the_page_has_the_results_and_ratios_are_of_medians():
    results = json.loads(summary.RESULTS.read_text())
    assert (
        summary.table(results)
        == summary.PAGE.read_text()
        .split(summary.BEGIN)[1]
        .split(summary.END)[0]
        .strip()
    )
    assert {len(values) for values in results["examples_per_second"].values()} == {3}
    _, ours, other = summary.comparisons(peers=False)[0]
    results["examples_per_second"] = {
        ours.name: [23.0, 18.0, 21.0],
        other.name: [10.0, 11.0, 9.0],
    }
    assert "| bare loop | 21 (2.10) |  |  |  |\n" in summary.table(results)
    assert "up to 24% of their median" in summary.table(results)
    results["examples_per_second"][other.name] = [10.0, 11.0, 8.0]  # 30% apart
    assert "| 21 " not in summary.table(results)


def test_the_middle_half_leaves_out_what_a_busy_moment_did():
    assert summary.middle_half([0.97, 0.98, 1.34, 0.96, 0.97]) == (0.97, 0.98)
    assert summary.middle_half([1.0]) == (1.0, 1.0)


def test_what_the_page_says_of_the_gpu_is_in_its_results():
    page = " ".join(summary.PAGE.read_text().split())
    claim = r"at (\d+) % of a bare loop's speed in float32, and at (\d+) % in "
    claim += r"bfloat16, as medians of (\w+) rounds"
    float32, bfloat16, rounds = re.search(claim, page).groups()
    results = json.loads(summary.ACCELERATORS.read_text())
    assert summary.table_of_accelerators(results) in summary.PAGE.read_text()
    assert re.search(r", pmapdp \d+\.\d+\.\d+$", results["machine"])
    shown = {"ResNet-18, 512": float32, "ResNet-18, 512, bfloat16": bfloat16}
    for work, percent in shown.items():
        for strategy in ("pmap", "jit"):
            ratios = results["rows"][work][strategy]["ratios"]
            assert round(100 * np.median(ratios)) in (int(percent), int(percent) + 1)
            assert (len(ratios), rounds) == (5, "five")


@pytest.mark.slow
@pytest.mark.parametrize("program", [ours, bare])
def test_the_trainer_on_the_work_of_the_bare_loop(
    program, tmp_path, monkeypatch, capsys
):
    """The programs of both print a speed for each epoch."""
    split = entry.examples_for("cnn", 96, 0)
    np.savez(tmp_path / "data.npz", images=split.inputs, labels=split.labels)
    monkeypatch.setattr(
        "sys.argv", ["", str(tmp_path / "data.npz"), "jit", "mlp", "2", "32", "64", "2"]
    )
    monkeypatch.setattr("pmapdp.train.keep_compiled_programs", lambda: None)
    program.main()
    lines = [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("{")
    ]
    speeds = [json.loads(line)["examples_per_second"] for line in lines]
    assert len(speeds) == 2
    assert min(speeds) > 0


@quick(
    1,
    ("model", "strategy"),
    [("cnn", "pmap"), ("cnn", "single"), ("convnet", "shard_map"), ("convnet", "jit")],
)
def test_the_bare_step_does_the_trainers_work(float64, model, strategy):
    """The parameters after two updates in float64, against the trainer's on one device.

    Also batch norm and dropout.
    """
    task = Task(build(MODELS[model], dtype="float64"), optax.sgd(0.1), dtype="float64")
    trainer, devices = (
        steps.single.make_strategy(task, jax.devices()[:1]),
        1 if strategy == "single" else 4,
    )
    step, bare_state, split = bare.make_loop(
        task.model, strategy, jax.devices()[:devices], optax.sgd(0.1)
    )
    state = trainer.place_state(create_state(task))
    data = entry.examples_for(model, 32, 0)
    for number in range(2):
        batch = entry.batch_of(data, np.arange(16 * number, 16 * (number + 1)))
        state, _ = trainer.train_step(state, trainer.place_batch(batch))
        arrays = batch.inputs, batch.labels, batch.indices
        bare_state, _ = step(bare_state, *bare.place(arrays, split, strategy))
    wanted, found = state.params, nnx.to_pure_dict(bare_state[0])
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(other, one, rtol=0, atol=1e-10),
        wanted,
        found,
    )


@pytest.mark.slow
def test_accelerators(tmp_path, monkeypatch):
    """On simulated devices, with a smaller network and two updates."""
    monkeypatch.setattr(
        accelerators,
        "WORKS",
        [accelerators.Work("CNN, 64", MODELS["mlp"], (28, 28, 1), 8, 2)],
    )
    monkeypatch.setattr(
        accelerators,
        "measure_pytorch",
        lambda updates: {"CNN, 64": {"eager": 1.0, "compiled": 2.0}},
    )
    file = tmp_path / "found.json"
    accelerators.main(["--rounds", "1", "--updates", "2", "--file", str(file)])
    *_, row, _, machine = summary.table_of_accelerators(
        json.loads(file.read_text())
    ).splitlines()
    assert re.fullmatch(
        r"\| CNN, 64 \| [\d,]+ \([\d.]+; .* to .*\) \| .* \| [\d,]+ \| 1 \| 2 \|", row
    )
    assert machine.startswith("8 x cpu, jax ")
    assert machine.endswith(f", pmapdp {__version__}.")
