"""The recipe nnx-mesh, and what a state costs that is made in parts."""

import json

import jax
import launch
import numpy as np
import pytest
from jax import P

from pmapdp.sharding import nnx_guide
from pmapdp.sharding.fit import fit_layout
from pmapdp.sharding.names import Axes
from pmapdp.sharding.split_step import make_steps
from pmapdp.state import create_state

# Of the guide's program on one device with current JAX, made without this project.
ONE_DEVICE = [1.493, 0.820, 0.558, 0.411, 0.298]


def test_five_steps_on_the_mesh_as_on_one_device():
    out = launch.train("nnx-mesh", "--no-progress")
    assert out.returncode == 0, out.stderr
    rows = [line.split() for line in out.stdout.splitlines() if line[:6].strip() in {"1", "2", "3", "4", "5"}]
    assert [float(row[1]) for row in rows] == ONE_DEVICE
    assert [float(row[2]) for row in rows] == ONE_DEVICE
    assert [float(row[3]) for row in rows] == [1.455, 0.765, 0.510, 0.378, 0.281]
    for mesh, share in (("1x8", "0.125"), ("2x4", "0.250"), ("4x2", "0.500"), ("8x1", "1.000")):
        assert any(
            line.startswith(f"mesh {mesh}") and f" {share} of the whole" in line for line in out.stdout.splitlines()
        )


def test_first_loss_equals_numpy():
    task, devices = nnx_guide.make_task(), jax.devices()[:1]
    steps = make_steps("jit", task, devices)
    state, batch = create_state(task, steps.state_sharding), nnx_guide.examples()
    first, second = (np.float64(state.params[name]) for name in ("first", "second"))
    loss = np.mean((np.maximum(np.float64(batch.inputs) @ first, 0) @ second - np.float64(batch.labels)) ** 2)
    assert nnx_guide.train(task, steps)[1][0] == pytest.approx(loss, rel=1e-5)


def test_places_are_as_the_guide_has_them():
    task, devices = nnx_guide.make_task(), jax.devices()[:8]
    layout = fit_layout(devices, task, (1024,), mesh="data=2,model=4", layout="model")
    places = layout.state(task)
    assert places.params["first"].spec == P(None, "model")
    assert places.params["second"].spec == P("model", None)
    assert layout.array(Axes(("batch", "hidden"), (8, 1024))).spec == P("data", "model")
    moments = places.optimizer_state[0]
    assert moments.mu == moments.nu == places.params
    state, _, _ = nnx_guide.train(task, make_steps("jit", task, devices, layout))
    for leaf, place in zip(jax.tree.leaves(state), jax.tree.leaves(places), strict=True):
        assert leaf.sharding.is_equivalent_to(place, leaf.ndim)
    # The same when the rules stand in the model instead of the command line.
    rules = tuple((name, axes or None) for name, axes in layout.rules.items())
    in_the_model = nnx_guide.make_task(rules=rules)
    assert fit_layout(devices, in_the_model, (1024,), mesh="data=2,model=4").state(in_the_model) == places


def test_a_setting_without_effect_is_refused():
    out = launch.train("nnx-mesh", "--epochs", 3)
    assert out.returncode == 2
    assert "--epochs has no effect on the recipe nnx-mesh" in out.stderr


@pytest.mark.slow
def test_a_state_made_in_parts_never_is_there_as_a_whole():
    """One process simulates all devices: made whole on each of the eight, the state takes more than eight times its
    size; made in parts about once, and the temporary arrays of the random generator as much again.
    """
    split, whole = (
        json.loads(launch.python("sharding/memory_worker.py", 2048, mesh).stdout)
        for mesh in ("data=1,model=8", "data=8")
    )
    assert split["state"] == whole["state"] == 6 * 4 * 2048**2 + 8  # two matrices, twice as much for Adam, two counts
    assert split["largest_shard"] * 8 == whole["largest_shard"] == 4 * 2048**2
    assert split["grown"] < 2.5 * split["state"]
    assert whole["grown"] > 6 * whole["state"]  # eight copies, less what was free in the process before
