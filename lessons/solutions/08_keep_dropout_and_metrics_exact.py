"""Solutions of lesson 08's exercises."""

import jax
import numpy as np
from jax import lax


def row_keys(seed, update, layer, indices):
    """One random key for each example: integers and `[b]` indices to `[b]` keys."""
    # Fold in one after another, because seed + update would give update 2 of seed 1 the keys of update 1 of seed 2.
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), update), layer)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)


def exact_accuracy(predict, x, labels, b):
    """Fraction of correct answers among all n examples."""

    def sums(x, labels, weights):
        correct = weights * (predict(x).argmax(-1) == labels)
        return lax.psum((correct.sum(), weights.sum()), "data")

    N = len(jax.devices())
    step = jax.pmap(sums, axis_name="data", out_axes=None)
    padding = -len(x) % (N * b)  # so that all batches have one shape, and the step is compiled once
    weights = np.pad(np.ones(len(x)), (0, padding))
    rows = np.pad(x, ((0, padding), (0, 0))), np.pad(labels, (0, padding)), weights
    totals = np.zeros(2)
    for start in range(0, len(rows[0]), N * b):
        batch = [array[start : start + N * b].reshape(N, b, *array.shape[1:]) for array in rows]
        totals += jax.device_get(step(*batch))
    return totals[0] / totals[1]


def fixed_mean(x, weights):
    """Mean over the valid examples of all devices: `[b, C]`, `[b]` to `[C]`."""
    # len(x) counts the padding, too, which only the last batch has. The number of examples is the sum of the weights.
    total, count = lax.psum((weights @ x, weights.sum()), "data")
    return total / count
