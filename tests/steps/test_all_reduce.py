"""What the all-reduce is for: without it replicas drift apart, with a sum in place of the mean steps are too long.

The mistakes are put into the real strategies by replacing the `lax.pmean` of pmap and shard_map; under jit the
compiler inserts the all-reduce, and there is nothing to leave out.
"""

from types import SimpleNamespace

import jax
import numpy as np
import numpy_mlp
import optax
import pytest
from examples import random_split, whole_batch
from jax import lax
from marks import quick

from pmapdp.registry import MODELS
from pmapdp.state import Task, build, create_state
from pmapdp.steps import make_strategy

N = 8
SPLIT = random_split(64)
EXPLICIT = ("pmap", "shard_map")
PARALLEL = (*EXPLICIT, "jit")


@pytest.fixture(scope="module")
def initial():
    return create_state(Task(build(MODELS["mlp"]), optax.sgd(1.0)))


def replace_pmean(monkeypatch, strategy, pmean):
    """Let the file of a strategy average gradients and counts by `pmean`."""
    monkeypatch.setattr(f"pmapdp.steps.{strategy}.lax", SimpleNamespace(pmean=pmean, psum=lax.psum))


def updated(strategy, initial, learning_rate, batch):
    """The placed state after one update by gradient descent."""
    steps = make_strategy(strategy, Task(build(MODELS["mlp"]), optax.sgd(learning_rate)), jax.devices()[:N])
    return steps.train_step(steps.place_state(initial), steps.place_batch(batch))[0]


def copies(array) -> list[np.ndarray]:
    """What each device holds of a replicated array, in the order of the devices."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.device.id)
    assert [shard.device for shard in shards] == jax.devices()[:N]
    assert all(shard.data.shape == array.shape for shard in shards)
    return [np.asarray(shard.data) for shard in shards]


def gradient_ratio(strategy, initial) -> float:
    """Length of the step at learning rate 1, over the length of NumPy's gradient of the mean loss."""
    _, gradients = numpy_mlp.loss_and_gradients(initial.params, SPLIT.inputs, SPLIT.labels)
    after = updated(strategy, initial, 1.0, whole_batch(SPLIT, np.arange(64)))
    step = jax.tree.map(lambda old, new: old - np.asarray(new), initial.params, jax.device_get(after.params))
    return float(optax.tree.norm(step) / optax.tree.norm(gradients))


@quick(1, "strategy", PARALLEL)
def test_replicas_stay_equal_bit_for_bit(strategy, initial):
    after = updated(strategy, initial, 0.1, whole_batch(SPLIT, np.arange(64)))
    for leaf in jax.tree.leaves(after):
        first, *others = copies(leaf)
        for other in others:
            np.testing.assert_array_equal(other, first)


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_replicas_differ_without_the_all_reduce(strategy, initial, monkeypatch):
    replace_pmean(monkeypatch, strategy, lambda values, axis_name: values)
    after = updated(strategy, initial, 0.1, whole_batch(SPLIT, np.arange(64)))
    first, *others = copies(after.params["logits"]["kernel"])
    assert all(np.abs(other - first).max() > 1e-6 for other in others)


@pytest.mark.parametrize("strategy", [*PARALLEL, "single"])
def test_the_gradient_is_that_of_the_mean_loss(strategy, initial):
    assert gradient_ratio(strategy, initial) == pytest.approx(1, rel=1e-4)


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_a_sum_of_the_devices_means_is_caught_by_its_length(strategy, initial, monkeypatch):
    """The usual mistake: gradients are summed over the devices, each divided by its own number of examples."""

    def sum_of_means(values, axis_name):
        gradients, count = values
        return jax.tree.map(lambda g: lax.psum(g / count, axis_name), gradients), count / count

    replace_pmean(monkeypatch, strategy, sum_of_means)
    assert gradient_ratio(strategy, initial) == pytest.approx(N, rel=1e-4)


@pytest.mark.parametrize("strategy", EXPLICIT)
def test_counting_no_examples_is_caught_by_its_length(strategy, initial, monkeypatch):
    """The sum over all 64 examples in place of their mean."""

    def forget_the_count(values, axis_name):
        gradients, count = values
        return lax.psum(gradients, axis_name), count / count

    replace_pmean(monkeypatch, strategy, forget_the_count)
    assert gradient_ratio(strategy, initial) == pytest.approx(64, rel=1e-4)
