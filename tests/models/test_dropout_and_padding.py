"""Contract 3, randomness belongs to the example and not to the device; and padding counts for nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from examples import random_split, whole_batch
from flax import nnx
from marks import quick

from pmapdp.data.batches import Batch, Batches
from pmapdp.models.layers import Context, Dropout, example_keys
from pmapdp.registry import MODELS
from pmapdp.state import Task, build, create_state
from pmapdp.steps import make_strategy

STRATEGIES = ("pmap", "jit", "shard_map", "single")
SEED = 5
SPLIT = random_split(40, seed=33)  # see test_every_activation_is_far_from_the_edge_of_its_relu


def masks(indices, *, seed=0, step=0, layer=0):
    keys = example_keys(seed, jnp.int32(step), jnp.asarray(indices, jnp.int32))
    return np.asarray(Dropout(0.5, layer=layer)(jnp.ones((len(indices), 256)), Context(keys=keys, train=True)))


@pytest.fixture(scope="module")
def convnet():
    task = Task(build(MODELS["convnet"], SEED), optax.sgd(0.1), seed=SEED)
    state = create_state(task)
    steps = {}

    def one_step(strategy: str, batch: Batch):
        """Loss sum and parameters after one update of the first state."""
        if strategy not in steps:
            steps[strategy] = make_strategy(strategy, task, jax.devices()[:8])
        place_state, place_batch, train_step, _, fetch, _ = steps[strategy]
        after, sums = fetch(train_step(place_state(state), place_batch(batch)))
        return float(sums.loss), after

    return one_step


def test_permuting_the_examples_permutes_the_masks():
    order = np.random.default_rng(0).permutation(16)
    np.testing.assert_array_equal(masks(np.arange(16))[order], masks(order))


def test_masks_differ_between_examples_updates_seeds_and_layers():
    first = masks([7])
    for other in (masks([8]), masks([7], step=1), masks([7], seed=1), masks([7], layer=1)):
        assert 0.3 < (first != other).mean() < 0.7  # independent halves agree on half of the units


def test_half_of_the_units_stay_and_are_doubled():
    kept = masks(np.arange(200))
    assert set(np.unique(kept)) == {0.0, 2.0}
    assert abs(kept.mean() - 1) < 0.02  # 51,200 draws: the standard deviation of this mean is 0.0044


@pytest.mark.slow
def test_every_activation_is_far_from_the_edge_of_its_relu(monkeypatch):
    """What the next test stands on, in float64: a ReLU's gradient jumps at 0, where rounding would decide the side."""
    nearest, relu = [], nnx.relu

    def recorded(x):
        nearest.append(float(abs(x).min()))
        return relu(x)

    monkeypatch.setattr(nnx, "relu", recorded)
    state = create_state(Task(build(MODELS["convnet"], SEED), optax.sgd(0.1), seed=SEED))
    batch = whole_batch(SPLIT, np.arange(16))
    with jax.enable_x64(True):
        task = Task(build(MODELS["convnet"], SEED, dtype="float64"), optax.sgd(0.1), seed=SEED, dtype="float64")
        params, model_state = jax.tree.map(lambda x: jnp.asarray(x, "float64"), (state.params, state.model_state))
        context = Context(batch.weights, example_keys(SEED, 0, batch.indices), 0, train=True)
        task.loss(task.model_with(params, model_state), batch, context)
    assert len(nearest) == 4
    assert min(nearest) > 2e-5  # float32 errs by some 1e-6 here


@quick(1, "strategy", STRATEGIES)
def test_an_update_does_not_depend_on_where_an_example_lies(convnet, strategy):
    order = np.random.default_rng(1).permutation(16)
    loss, after = convnet(strategy, whole_batch(SPLIT, np.arange(16)))
    permuted_loss, permuted = convnet(strategy, whole_batch(SPLIT, order))
    assert permuted_loss == pytest.approx(loss, rel=1e-5)
    for one, other in zip(jax.tree.leaves(after.params), jax.tree.leaves(permuted.params), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@quick(1, "strategy", STRATEGIES)
def test_the_update_sees_the_number_of_each_example(convnet, strategy):
    """The guard of the test above: with other numbers, so other masks, the same images give another loss."""
    batch = whole_batch(SPLIT, np.arange(16))
    loss, _ = convnet(strategy, batch)
    other_loss, _ = convnet(strategy, batch._replace(indices=batch.indices + 16))
    assert abs(other_loss - loss) > 1e-3


@quick(1, "strategy", STRATEGIES)
def test_what_stands_in_the_padding_changes_nothing(convnet, strategy):
    batch = Batches(SPLIT, 16, devices=8).take(np.arange(5, 16))
    padding = batch.weights == 0
    assert padding.sum() == 5
    garbage = random_split(16, seed=9)
    other = Batch(
        np.where(padding[:, None, None, None], garbage.inputs, batch.inputs),
        np.where(padding, garbage.labels, batch.labels),
        np.where(padding, 39, batch.indices).astype(np.int32),
        batch.weights,
    )
    loss, after = convnet(strategy, batch)
    other_loss, other_after = convnet(strategy, other)
    assert other_loss == loss
    for one, two in zip(jax.tree.leaves(after), jax.tree.leaves(other_after), strict=True):
        np.testing.assert_array_equal(one, two)
