"""Solutions of lesson 06's exercises."""

import numpy as np
from jax import lax


def step(w, x, y):
    """Parameters `[D]` after one step on `[b, D]` and `[b]` of each device."""
    gradient = x.T @ (x @ w - y) / len(y)
    return w - 0.1 * lax.pmean(gradient, "data")


def largest_difference(array):
    """The largest difference between two devices' copies of one element."""
    copies = np.stack([shard.data for shard in array.addressable_shards])  # [N, ...]
    return np.ptp(copies, axis=0).max()


def global_gradient(w, x, y, weights):
    """Gradient `[D]` over all devices' examples; `weights` `[b]` is 1 for an example and 0 for padding."""
    gradient = x.T @ (weights * (x @ w - y))
    gradient, count = lax.psum((gradient, weights.sum()), "data")
    return gradient / count
