"""Collectives that simulated devices take one after the other travel together, and bring what they brought alone."""

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from examples import random_split
from jax import lax
from jax.sharding import Mesh, PartitionSpec
from marks import quick

from pmapdp.cpu.convolution import faster
from pmapdp.cpu.joined import join_collectives
from pmapdp.data.batches import Batches
from pmapdp.registry import MODELS
from pmapdp.sharding.layout import data_parallel
from pmapdp.sharding.split_step import make_steps
from pmapdp.state import Task, create_state

N = 8
SPLIT = random_split(50)


def compiled_step(strategy, model, layout=None):
    """The optimized program of the joined training step, and the number of parameters."""
    task = Task(MODELS[model], optax.adam(1e-3), transform=faster)
    steps, batches = make_steps(strategy, task, jax.devices()[:N], layout), Batches(SPLIT, 32, devices=N)
    state, batch = steps.place_state(create_state(task)), steps.place_batch(next(batches.epoch(0)))
    program = jax.jit(join_collectives(steps.train_step)).lower(state, batch).compile().as_text()
    return program, sum(leaf.size for leaf in jax.tree.leaves(state.params))


@quick(1, "model", ["cnn", "mlp"])
@pytest.mark.parametrize("strategy", ["pmap", "shard_map"])
def test_gradients_are_copied_into_one_vector(strategy, model):
    """No concatenation makes it, into which XLA could move what computes them."""
    program, parameters = compiled_step(strategy, model)
    travelling = parameters + 4  # with the number of examples, and three sums of metrics
    makers = re.findall(rf"= f32\[{travelling}\]\S* ([\w-]+)\(", program)
    assert "all-reduce" in makers or "all-reduce-start" in makers
    assert "dynamic-update-slice" in makers
    assert "concatenate" not in makers


@quick(1, "model", ["mlp", "cnn"])
@pytest.mark.parametrize("strategy", ["pmap", "shard_map"])
def test_a_split_optimizer_takes_one_reduce_scatter_and_one_all_gather(strategy, model):
    program, _ = compiled_step(strategy, model, data_parallel(jax.devices()[:N], "optimizer"))
    found = Counter(re.findall(r"\s(reduce-scatter|all-gather)(?:-start)?\(", program))
    assert found == {"reduce-scatter": 1, "all-gather": 1}


MESH = PartitionSpec("data")


def on_four_devices(function, *inputs):
    """`function` of each device's rows, joined and not; and the collectives that are left in the joined program."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    mapped = jax.shard_map(function, mesh=mesh, in_specs=MESH, out_specs=MESH, check_vma=False)
    joined = join_collectives(mapped)
    program = str(jax.make_jaxpr(joined)(*inputs))
    return mapped(*inputs), joined(*inputs), Counter(re.findall(r"= (psum|reduce_scatter|all_gather)\[", program))


def random(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


FUNCTIONS = {
    # name: (what each of four devices does, collectives afterwards)
    "neighbours": (lambda x, y: (lax.psum(x, "data"), lax.psum(y, "data")), {"psum": 1}),
    "mean": (lambda x, y: lax.pmean((x, y), "data"), {"psum": 1}),
    "one needs the other": (lambda x, y: lax.psum(y + lax.psum(x, "data").sum(), "data"), {"psum": 2}),
    "types": (lambda x, y: (lax.psum(x, "data"), lax.psum(y.astype(jnp.int32), "data")), {"psum": 2}),
    "other kinds": (lambda x, y: (lax.psum(x, "data"), lax.pmax(y, "data")), {"psum": 1}),
    "groups": (lambda x, y: lax.psum((x, y), "data", axis_index_groups=[[0, 1], [2, 3]]), None),
    "under jit": (lambda x, y: jax.jit(lambda x, y: (lax.psum(x, "data"), lax.psum(y, "data")))(x, y), {"psum": 1}),
    "in a branch": (
        lambda x, y: lax.cond(lax.psum(x, "data").sum() > 0, lambda y: lax.psum(y, "data"), lambda y: y, y),
        None,
    ),
    "in a scan": (lambda x, y: lax.scan(lambda c, r: (c + lax.psum(r, "data"), lax.psum(c, "data")), y[0], y), None),
    "scattered": (
        lambda x, y: tuple(lax.psum_scatter(z, "data", scatter_dimension=1, tiled=True) for z in (x, y)),
        {"reduce_scatter": 1},
    ),
    "gathered": (lambda x, y: tuple(lax.all_gather(z, "data", axis=1, tiled=True) for z in (x, y)), {"all_gather": 1}),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_joined_is_equal(name):
    function, left = FUNCTIONS[name]
    wanted, found, collectives = on_four_devices(function, random(8, 4), random(4, 8, 3))
    jax.tree.map(np.testing.assert_array_equal, found, wanted)
    if left is not None:
        assert collectives == left
