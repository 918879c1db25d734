"""Answers to the exercises of lesson 08; see ../test_exercises.py."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


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


WRONG = {
    "row_keys": [
        ("place in the batch", split_by_position),
        ("fold in the step", ignores_step),
        ("another seed gives the same keys", ignores_seed),
        ("numbers were added up", adds_seed_and_step),
        ("numbers were added up", adds_step_and_index),
        ("one each", one_key),
    ],
    "exact_accuracy": [
        ("instead of dropping it", partial(accuracy, drop=True)),
        ("divides 0 by 0", partial(accuracy, mean=True)),
        ("padding has weight 0", partial(accuracy, count_padding=True)),
        ("must run on all devices", on_one_device),
        ("should see arrays of shape", all_at_once),
    ],
    "mended_mean": [
        ("count the weights", counts_padding),
        ("both go through lax.psum", local_count),
        ("divide after the psum", divides_first),
    ],
}

RIGHT = {}
