"""Promise 3: dropout belongs to the example: its key comes from (seed, step, index),
with JAX's default generator.

The loss here is the sum of what a layer of dropout leaves of an example's ones, so that
it tells the mask.
"""

import functools

import entry
import jax
import numpy as np
import optax
import pytest
from flax import nnx

WIDTH = 64
N = 12


class Masked(nnx.Module):
    """`[b, 64]` ones to what dropout makes of them, twice."""

    def __init__(self, *, rngs):
        self.scale = nnx.Param(jax.numpy.ones(()))
        self.first = nnx.Dropout(0.5, rngs=rngs)
        self.second = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return self.first(x), self.second(x)


# A sum of these tells which of 16 numbers were kept.
POWERS = 2.0 ** np.arange(WIDTH // 4)


def masks(model, batch):
    """A loss that tells a part of the masks of the batch's only example of label 1, by
    either layer.
    """
    here = batch.weights * batch.labels
    first, second = (
        (here[:, None] * x[:, : len(POWERS)] * POWERS / 2).sum()
        for x in model(batch.inputs)
    )
    return {
        "loss": first + 0 * model.scale[...],
        "count": batch.weights.sum(),
        "correct": second,
    }


@functools.cache
def steps_of(strategy, devices, seed):
    return entry.Steps(
        strategy, jax.devices()[:devices], Masked, optax.sgd(0.0), seed=seed, loss=masks
    )


def data_with(number):
    return entry.Examples(
        np.ones((N, WIDTH), np.float32), (np.arange(N) == number).astype(np.int32)
    )


def told(number, indices, strategy="single", devices=1, seed=0, updates=1):
    """[mask by the first layer, mask by the second] of an example in the last of some
    updates on the same batch.
    """
    steps = steps_of(strategy, devices, seed)
    rows = -(-6 // devices) * devices
    state = steps.place_state(steps.first_state())
    for _ in range(updates):
        state, sums = steps.train_step(
            state, steps.place_batch(entry.batch_of(data_with(number), indices, rows))
        )
    return float(sums.loss), float(sums.correct)


@pytest.fixture(scope="module")
def mask():
    return told(5, [5])


def test_a_mask_keeps_half(mask):
    assert all(0 < kept < 2 ** len(POWERS) - 1 for kept in mask)
    assert all(kept == int(kept) for kept in mask)


@pytest.mark.parametrize("strategy", ["pmap", "shard_map", "jit"])
def test_the_mask_does_not_depend_on_the_other_examples_or_the_devices(mask, strategy):
    assert told(5, [0, 1, 5, 7]) == mask
    assert told(5, [7, 3, 5, 1, 0], strategy, devices=8) == mask
    assert told(5, [5, 9, 2], strategy, devices=8) == mask


def test_the_mask_changes_with_example_step_seed_and_layer(mask):
    of_another_example = told(6, [5, 6])
    of_another_step = told(5, [5], updates=2)
    of_another_seed = told(5, [5], seed=1)
    drawn = [*mask, *of_another_example, *of_another_step, *of_another_seed]
    assert len(set(drawn)) == 8


def test_the_generator_is_jaxs_default():
    """Other generators give other masks on other numbers of devices."""
    assert jax.config.jax_default_prng_impl == "threefry2x32"
    assert jax.config.jax_threefry_partitionable


def test_evaluation_draws_nothing():
    steps = steps_of("single", 1, 0)
    batch = steps.place_batch(entry.batch_of(data_with(5), [5], 6))
    sums = steps.eval_step(steps.place_state(steps.first_state()), batch)
    assert float(sums.loss) == float(sums.correct) == (2 ** len(POWERS) - 1) / 2


@pytest.mark.parametrize(
    "model", [pytest.param("transformer", marks=pytest.mark.slow), "speedrun"]
)
def test_built_in_models_draw_by_example(model):
    """The summed loss of a batch is the sum of the losses of its examples, each with
    its own mask, or its own shift. (The convnet's batch norm does look at other
    examples: `test_1_one_result.py` has it.)"""
    data = entry.examples_for(model, 5, 1)
    fullest = np.count_nonzero(data.inputs.reshape(5, -1), axis=1).argmax()
    data = entry.Examples(
        np.repeat(data.inputs[[fullest]], 5, 0), np.repeat(data.labels[[fullest]], 5, 0)
    )
    steps = entry.Steps("single", jax.devices()[:1], model, optax.sgd(0.0))
    first = steps.first_state()

    def loss_of(indices):
        batch = steps.place_batch(entry.batch_of(data, indices, 5))
        return float(steps.train_step(steps.place_state(first), batch)[1].loss)

    alone = [loss_of([number]) for number in range(5)]
    assert sum(alone) == pytest.approx(loss_of(range(5)), rel=1e-5)
    # Of nine shifts two may be equal.
    assert len({round(loss, 6) for loss in alone}) > 1
