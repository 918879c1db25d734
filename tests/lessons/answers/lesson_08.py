"""Answers to the exercises of lesson 08; see ../test_exercises.py."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def folded(seed, *numbers, indices):
    """The keys of the solution, from other numbers."""
    key = jax.random.key(seed)
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)


def split_by_position(seed, update, layer, indices):
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), update), layer)
    return jax.random.split(key, len(indices))


def one_key(seed, update, layer, indices):
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), update), layer)


def adds_update_and_index(seed, update, layer, indices):
    key = jax.random.fold_in(jax.random.key(seed), layer)
    return jax.vmap(lambda index: jax.random.fold_in(key, update + index))(indices)


def index_first(seed, update, layer, indices):
    def one(index):
        key = jax.random.fold_in(jax.random.key(seed), index)
        return jax.random.fold_in(jax.random.fold_in(key, layer), update)

    return jax.vmap(one)(indices)


def raw_keys(seed, update, layer, indices):
    key = jax.random.fold_in(jax.random.PRNGKey(seed), update)
    keys = [jax.random.fold_in(jax.random.fold_in(key, int(index)), layer) for index in indices]
    return jnp.stack(keys)


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


def accuracy_by_jit(predict, x, labels, b):
    mesh = Mesh(np.array(jax.devices()), ("data",))
    split = NamedSharding(mesh, PartitionSpec("data"))
    right_of = jax.jit(lambda x, labels, weights: (weights * (predict(x).argmax(-1) == labels)).sum())
    size, right = mesh.size * b, 0.0
    for start in range(0, len(x), size):
        rows = [a[start : start + size] for a in (x, labels, np.ones(len(x)))]
        padded = [np.pad(a, [(0, size - len(a))] + [(0, 0)] * (a.ndim - 1)) for a in rows]
        right += float(right_of(*jax.device_put(padded, split)))
    return right / len(x)


def accuracy_by_wrong_answers(predict, x, labels, b):
    N = len(jax.devices())
    wrong_on_device = jax.pmap(lambda x, labels: (predict(x).argmax(-1) != labels) & (labels >= 0))
    padding = -len(x) % (N * b)
    x, labels = np.pad(x, [(0, padding), (0, 0)]), np.pad(labels, [(0, padding)], constant_values=-1)
    shape = -1, N, b
    batches = zip(x.reshape(*shape, x.shape[1]), labels.reshape(shape), strict=True)
    wrong = sum(int(wrong_on_device(*batch).sum()) for batch in batches)
    return 1 - wrong / (len(labels) - padding)


def mean_by_pmean(x, weights):
    total, count = lax.pmean((weights @ x, weights.sum()), "data")
    return total / count


def mean_by_gathering(x, weights):
    x, weights = lax.all_gather(x, "data", tiled=True), lax.all_gather(weights, "data", tiled=True)
    return jnp.average(x, axis=0, weights=weights)


WRONG = {
    "row_keys": [
        ("place in the batch", split_by_position),
        ("fold in the update", lambda seed, update, layer, indices: folded(seed, layer, indices=indices)),
        ("fold in the layer", lambda seed, update, layer, indices: folded(seed, update, indices=indices)),
        ("another seed gives the same keys", lambda seed, u, layer, indices: folded(0, u, layer, indices=indices)),
        ("numbers were added up", lambda seed, u, layer, indices: folded(seed + u, layer, indices=indices)),
        ("numbers were added up", lambda seed, u, layer, indices: folded(seed, u + layer, indices=indices)),
        ("numbers were added up", adds_update_and_index),
        ("one each", one_key),
    ],
    "exact_accuracy": [
        ("instead of dropping it", partial(accuracy, drop=True)),
        ("divides 0 by 0", partial(accuracy, mean=True)),
        ("padding has weight 0", partial(accuracy, count_padding=True)),
        ("at a time", on_one_device),
        ("at a time", all_at_once),
    ],
    "fixed_mean": [
        ("count the weights", counts_padding),
        ("both go through lax.psum", local_count),
        ("divide after the psum", divides_first),
    ],
}

RIGHT = {
    "row_keys": [index_first, raw_keys],
    "exact_accuracy": [accuracy_by_jit, accuracy_by_wrong_answers],
    "fixed_mean": [mean_by_pmean, mean_by_gathering],
}
