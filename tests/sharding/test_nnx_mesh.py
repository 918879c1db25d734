"""The recipe nnx-mesh: the losses and the places of the guide."""

import contextlib
import re

import entry
import jax
import numpy as np
import pytest
from examples import regression
from jax import P

from pmapdp.data.batches import Batches
from pmapdp.data.random_numbers import load as random_numbers
from pmapdp.evaluate import evaluate_run
from pmapdp.export import export_run, load_exported
from pmapdp.run.checkpoints import Checkpoints
from pmapdp.sharding.layout import Axes, bytes_on_a_device, fit_layout
from pmapdp.state import create_state
from pmapdp.train import make_strategy

# Of the guide's program on one device with current JAX, made without this project.
ONE_DEVICE = [1.493, 0.820, 0.558, 0.411, 0.298]
REPORTED = [1.455, 0.765, 0.510, 0.378, 0.281]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--mesh", "data=4,model=2"]])
def test_five_updates_on_the_mesh_as_on_one_device_evaluated_and_exported(flags, tmp_path):
    run, file = str(tmp_path / "run"), str(tmp_path / "model.zip")
    done = entry.run_command("train", "nnx-mesh", "--no-progress", "--workdir", run, *flags)
    assert done.status == 0, done.err
    assert "batch over data, hidden over model" in done.out
    assert [round(float(loss), 3) for loss in re.findall(r"train loss (\S+)", done.out)] == ONE_DEVICE
    rows = [line.split()[-2:] for line in done.out.splitlines() if line.startswith("train loss, epoch")]
    assert [float(reported) for reported, _ in rows] == REPORTED
    assert [round(float(here), 3) for _, here in rows] == ONE_DEVICE
    # The model brings its own loss.
    (test_loss,) = {float(each) for each in re.findall(r"epoch 5.* test loss (\S+)", done.out)}
    assert evaluate_run(run)[0]["loss"] == pytest.approx(test_loss, abs=1e-4)
    export_run(run, file)
    data = random_numbers().test
    errors = (load_exported(file).outputs(data.inputs)["outputs"] - data.labels) ** 2
    assert errors.mean() == pytest.approx(test_loss, abs=1e-4)


@pytest.fixture(scope="module")
def trained():
    """The guide's task, its mesh, the state after the first update, and its loss."""
    task, devices = regression(), jax.devices()[:8]
    layout = fit_layout(devices, task, (1024,), mesh="data=2,model=4", layout="model")
    steps = make_strategy("jit", task, devices, layout)
    (batch,) = Batches(random_numbers().train, 8, devices=2).epoch(0)
    state, sums = steps.train_step(create_state(task, steps.state_sharding), steps.place_batch(batch))
    return task, layout, state, float(sums.loss / sums.count)


def test_first_loss_equals_numpy(trained):
    start, data = create_state(trained[0]), random_numbers().train
    first, second = (np.float64(start.params[name]) for name in ("first", "second"))
    loss = np.mean((np.maximum(np.float64(data.inputs) @ first, 0) @ second - np.float64(data.labels)) ** 2)
    assert trained[3] == pytest.approx(loss, rel=1e-5)


def test_places_are_as_the_guide_has_them(trained):
    task, layout, state, _ = trained
    places = layout.state(task)
    assert places.params["first"].spec == P(None, "model")
    assert places.params["second"].spec == P("model", None)
    assert layout.array(Axes(("batch", "hidden"), (8, 1024))).spec == P("data", "model")
    moments = places.optimizer_state[0]
    assert moments.mu == moments.nu == places.params
    for leaf, place in zip(jax.tree.leaves(state), jax.tree.leaves(places), strict=True):
        assert leaf.sharding.is_equivalent_to(place, leaf.ndim)
    # The same when the rules stand in the model instead of the command line.
    rules = tuple((name, axes or None) for name, axes in layout.rules.items())
    in_the_model = regression(rules=rules)
    assert fit_layout(jax.devices()[:8], in_the_model, (1024,), mesh="data=2,model=4").state(in_the_model) == places


@pytest.mark.slow
def test_restored_straight_into_other_shards(trained, tmp_path):
    task, _, state, _ = trained
    with contextlib.closing(Checkpoints(tmp_path)) as checkpoints:
        checkpoints.save(1, state, {})
        checkpoints.wait()
        for size in (1, 2, 4, 8):
            mesh = f"data={size},model={8 // size}"
            other = fit_layout(jax.devices()[:8], task, (1024,), mesh=mesh, layout="model").state(task)
            found = checkpoints.read(1, task, other).state
            for one, same in zip(jax.tree.leaves(state), jax.tree.leaves(found), strict=True):
                np.testing.assert_array_equal(one, same)
            assert bytes_on_a_device(found.params) == 2 * 4 * 1024**2 * size // 8
