"""The exercises of lesson 08: wrong answers get the message that helps."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pmapdp_lessons.checks import check

LESSON = "08_keep_dropout_and_metrics_exact"


def split_by_position(seed, step, indices):
    return jax.random.split(jax.random.fold_in(jax.random.key(seed), step), len(indices))


def ignores_step(seed, step, indices):
    return jax.vmap(lambda index: jax.random.fold_in(jax.random.key(seed), index))(indices)


def ignores_seed(seed, step, indices):
    key = jax.random.fold_in(jax.random.key(0), step)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)


def adds_seed_and_step(seed, step, indices):
    return jax.vmap(lambda index: jax.random.fold_in(jax.random.key(seed + step), index))(indices)


def adds_step_and_index(seed, step, indices):
    return jax.vmap(lambda index: jax.random.fold_in(jax.random.key(seed), step + index))(indices)


def one_key(seed, step, indices):
    return jax.random.fold_in(jax.random.key(seed), step)


def counts_padding(x, weights):
    return lax.psum((weights[:, None] * x).sum(0), "data") / lax.psum(len(x), "data")


def local_count(x, weights):
    return lax.psum((weights[:, None] * x).sum(0), "data") / jnp.maximum(weights.sum(), 1)


def divides_first(x, weights):
    return lax.pmean((weights[:, None] * x).sum(0) / weights.sum(), "data")


def accuracy(predict, x, labels, b, *, drop=False, mean=False, count_padding=False):
    """The solution, with one mistake."""
    N = len(jax.devices())

    def sums(x, labels, weights):
        correct = (weights * (predict(x).argmax(-1) == labels)).sum()
        return lax.pmean(correct / weights.sum(), "data") if mean else lax.psum((correct, weights.sum()), "data")

    step = jax.pmap(sums, axis_name="data", out_axes=None)
    padding = 0 if drop else -len(x) % (N * b)
    pad = [(0, padding)]
    weights = np.pad(np.ones(len(x)), pad, constant_values=float(count_padding))
    arrays = np.pad(x, [*pad, (0, 0)]), np.pad(labels, pad), weights
    starts = range(0, len(arrays[0]) // (N * b) * N * b, N * b)
    batches = [[a[start : start + N * b].reshape(N, b, *a.shape[1:]) for a in arrays] for start in starts]
    found = np.array([jax.device_get(step(*batch)) for batch in batches])
    return found.mean() if mean else found[:, 0].sum() / found[:, 1].sum()


def on_one_device(predict, x, labels, b):
    return (predict(x).argmax(-1) == labels).mean()


def all_at_once(predict, x, labels, b):
    N = len(jax.devices())
    return accuracy(predict, x, labels, -(-len(x) // N))


@pytest.mark.parametrize(
    ("exercise", "answer", "phrase"),
    [
        ("row_keys", split_by_position, "place in the batch"),
        ("row_keys", ignores_step, "fold in the step"),
        ("row_keys", ignores_seed, "another seed gives the same keys"),
        ("row_keys", adds_seed_and_step, "numbers were added up"),
        ("row_keys", adds_step_and_index, "numbers were added up"),
        ("row_keys", one_key, "one each"),
        ("exact_accuracy", partial(accuracy, drop=True), "instead of dropping it"),
        ("exact_accuracy", partial(accuracy, mean=True), "divides 0 by 0"),
        ("exact_accuracy", partial(accuracy, count_padding=True), "padding has weight 0"),
        ("exact_accuracy", on_one_device, "must run on all devices"),
        ("exact_accuracy", all_at_once, "should see arrays of shape"),
        ("mended_mean", counts_padding, "count the weights"),
        ("mended_mean", local_count, "both go through lax.psum"),
        ("mended_mean", divides_first, "divide after the psum"),
    ],
)
def test_a_wrong_answer_gets_the_message_that_helps(exercise, answer, phrase):
    verdict = check(LESSON, exercise, answer)
    assert not verdict.solved
    assert phrase in verdict.message
