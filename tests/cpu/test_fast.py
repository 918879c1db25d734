"""Contract 1 under `--fast-cpu`: the same result as without it, on one device and on several."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from examples import random_split, whole_batch
from flax import nnx
from launch import train
from marks import quick

from pmapdp.compare.collectives import collectives
from pmapdp.cpu import fast
from pmapdp.data.batches import Batches
from pmapdp.loss import MetricSums
from pmapdp.models.layers import Context
from pmapdp.registry import MODELS
from pmapdp.state import Task, build, create_state
from pmapdp.steps import make_strategy

SPLIT = random_split(83)
BATCH = 36  # on 4 devices 9 examples each, enough for Winograd's algorithm; the last batch holds 11
CONVOLUTIONS = {"cnn": 0, "convnet": 2, "speedrun": 0}  # those that are left: the first of convnet, and its gradient


def task_of(model, dtype="float64", accumulate=1):
    return Task(build(MODELS[model], dtype=dtype), optax.sgd(0.1), dtype=dtype, accumulate=accumulate)


def trained(task, name, devices, accumulate=1):
    """State and metric sums after an update on each batch of an epoch, then the metrics of the last batch."""
    strategy = make_strategy(name, task, jax.devices()[:devices])
    state, found = strategy.place_state(create_state(task)), []
    for batch in Batches(SPLIT, BATCH, devices=devices, accumulate=accumulate, shuffle_seed=1).epoch(0):
        placed = strategy.place_batch(batch)
        state, sums = strategy.train_step(state, placed)
        found.append(sums)
    return jax.device_get((strategy.fetch(state), found, strategy.eval_step(state, placed)))


def assert_equal(found, wanted, tolerance):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), found, wanted)


@quick(
    1,
    ("model", "strategy", "devices", "accumulate"),
    [
        ("cnn", "pmap", 4, 2),
        ("convnet", "pmap", 4, 1),
        ("convnet", "single", 1, 2),
        ("speedrun", "shard_map", 4, 1),
        ("cnn", "jit", 8, 1),
        ("convnet", "single", 1, 1),
        ("convnet", "jit", 4, 1),
        ("convnet", "shard_map", 3, 1),
    ],
    by_day=4,
)
def test_the_result_is_that_of_one_device_without_the_flag(float64, model, strategy, devices, accumulate):
    of_reference = accumulate if model == "convnet" else 1  # batch norm takes the moments of each micro-batch
    wanted = trained(task_of(model, accumulate=of_reference), "single", 1, of_reference)
    found = trained(fast(task_of(model, accumulate=accumulate)), strategy, devices, accumulate)
    assert_equal(found, wanted, 1e-10)


@quick(1, "model", ["cnn", "convnet", "speedrun"])
def test_what_differs_in_float32_is_rounding(model):
    """An update on each of ten batches. Where two pixels of a pooling window are equal but for rounding, either may get
    the gradient, which shows in one batch or two."""
    tasks = task_of(model, "float32"), fast(task_of(model, "float32"))
    strategies = [make_strategy("single", task, jax.devices()[:1]) for task in tasks]
    differences = []
    for first in range(0, 80, 8):
        found = []
        for task, strategy in zip(tasks, strategies, strict=True):
            batch = strategy.place_batch(whole_batch(SPLIT, np.arange(first, first + 8)))
            state, _ = strategy.train_step(strategy.place_state(create_state(task)), batch)
            found.append(jax.device_get(state.params))
        differences.append(max(np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, found), strict=True)))
    assert np.median(differences) < 1e-7  # an update is 1e-2
    assert max(differences) < 1e-3


@quick(1, "model", CONVOLUTIONS)
def test_which_convolutions_are_left(model):
    task = fast(task_of(model, "float32"))
    strategy = make_strategy("single", task, jax.devices()[:1])
    batch = strategy.place_batch(whole_batch(SPLIT, np.arange(8)))
    program = strategy.train_step.lower(strategy.place_state(create_state(task)), batch).compile().as_text()
    assert program.count(" convolution(") == CONVOLUTIONS[model]


@pytest.mark.slow
def test_under_jit_every_device_keeps_its_images():
    """The compiler splits the steps of Winograd's algorithm by examples, so that gradients and moments travel alone."""
    task = fast(task_of("convnet", "float32"))
    strategy = make_strategy("jit", task, jax.devices()[:8])
    state, batch = strategy.place_state(create_state(task)), strategy.place_batch(whole_batch(SPLIT, np.arange(64)))
    program = strategy.train_step.lower(state, batch).compile().as_text()
    assert {each.kind for each in collectives(program)} == {"all-reduce"}


class Counts(nnx.Variable):
    """A kind of variable of a user's own."""


class Own(nnx.Module):
    """A model that changes a variable of its own in training."""

    def __init__(self, rngs):
        self.conv, self.seen = nnx.Conv(1, 4, (3, 3), rngs=rngs), Counts(jnp.zeros(()))

    def __call__(self, x, context: Context):
        if context.train:
            self.seen[...] += context.weights.sum()
        return self.conv(x.astype(jnp.float32)).mean((1, 2))


def own_loss(model, batch, context):
    errors = jnp.square(model(batch.inputs / 255, context)).sum(-1)
    return MetricSums((batch.weights * errors).sum(), jnp.zeros(()), batch.weights.sum())


@pytest.mark.parametrize("wrap", [fast, lambda task: task])
def test_a_model_and_a_loss_of_ones_own(wrap):
    state, _, evaluated = trained(wrap(Task(build(lambda rngs: Own(rngs)), optax.sgd(0.1), loss=own_loss)), "single", 1)
    assert state.model_state["seen"] == 83
    assert evaluated.count == 11


@pytest.mark.slow
def test_the_header_names_the_flag():
    flags = ["--devices", 2, "--steps", 1, "--model", "cnn", "--no-progress"]
    found = [train(*flags, *more) for more in ([], ["--fast-cpu"])]
    assert [done.returncode for done in found] == [0, 0]
    assert ["--fast-cpu" in done.stdout for done in found] == [False, True]
