"""Checks of lesson 07's exercises."""

import jax
import numpy as np
from checks import require

AXIS = "data"


def global_variance(answer):
    """The weighted variance over all devices: one number, the same on each."""
    random = np.random.default_rng()
    N, b = 4, 6
    devices = jax.devices()[:N]

    def variance(values, weights):
        return np.asarray(jax.pmap(answer, axis_name=AXIS, devices=devices)(values, weights))

    values = random.normal(size=(N, b)).astype(np.float32) + 3 * np.arange(N, dtype=np.float32)[:, None]
    everything = np.ones_like(values)
    found = variance(values, everything)
    require(
        found.shape == (N,), f"every device must return one number of shape [], yours has the shape {found.shape[1:]}"
    )
    require(
        not np.allclose(found, values.var(1), rtol=1e-3),
        "this is each device's own variance: the sums must go through lax.psum(..., 'data')",
    )
    require(
        not np.allclose(found, values.var(1).mean(), rtol=1e-3),
        "this is the mean of the devices' variances, which misses how far their means lie apart: take the squared "
        "distances from the mean over all devices",
    )
    require(
        np.allclose(found, values.var(), rtol=1e-3),
        f"without any padding the variance over all devices is {values.var():.4f}, yours is {found.round(4)}",
    )

    weights = everything.copy()
    weights[-1, 1:] = 0
    values = np.where(weights > 0, values, 100).astype(np.float32)
    expected, found = values[weights > 0].var(), variance(values, weights)
    require(
        np.allclose(found, expected, rtol=1e-3),
        f"padding was counted: rows of weight 0 must change neither sums nor count (expected {expected:.4f}, yours is "
        f"{found.round(4)})",
    )
    far = (values + 20_000).astype(np.float32)
    expected, found = far[weights > 0].astype(np.float64).var(), variance(far, weights)
    require(
        np.allclose(found, expected, rtol=1e-2),
        f"E[x^2] - E[x]^2 loses its digits when the mean is large (expected {expected:.3f} around the mean 20,000, "
        f"yours is {found.round(3)}): take two passes, the mean first",
    )


def row_keys(answer):
    """Keys that depend on seed, step and index, and on nothing else."""
    random = np.random.default_rng()
    seed, step = (int(number) for number in random.integers(1, 1000, 2))
    indices = random.permutation(1000)[:12].astype(np.int32)

    def keys(seed, step, indices):
        found = answer(seed, step, indices)
        if jax.dtypes.issubdtype(found.dtype, jax.dtypes.prng_key):
            found = jax.random.key_data(found)
        found = np.asarray(found)
        require(
            found.ndim == 2 and len(found) == len(indices),
            f"{len(indices)} indices must give {len(indices)} keys, one each: wrap the fold_in of an index in jax.vmap",
        )
        return found

    whole = keys(seed, step, indices)
    require(len(np.unique(whole, axis=0)) == len(indices), "two examples have the same key: fold in their index")
    order = random.permutation(len(indices))
    halves = np.concatenate([keys(seed, step, indices[:6]), keys(seed, step, indices[6:])])
    require(
        (keys(seed, step, indices[order]) == whole[order]).all() and (halves == whole).all(),
        "an example's key changes with its place in the batch: fold in its index, do not split a key by position",
    )
    require(
        not (keys(seed, step + 1, indices) == whole).any(axis=1).any(),
        "the next step has the same keys: every update would drop the same activations; fold in the step",
    )
    require(
        not (keys(seed + 1, step, indices) == whole).any(axis=1).any(),
        "another seed gives the same keys: start from jax.random.key(seed)",
    )
    require(
        not (keys(seed, step + 1, indices - 1) == whole).any()
        and not (keys(seed + 1, step - 1, indices) == whole).any(),
        "different pairs share a key, because numbers were added up (seed + step, or step + index): fold them in one "
        "after the other",
    )


def mended_mean(answer):
    """The mean over valid examples, with padding on two of four devices."""
    random = np.random.default_rng()
    N, b, C = 4, 5, 3
    x = random.normal(size=(N, b, C)).astype(np.float32) + 4
    weights = np.ones((N, b), np.float32)
    weights[2, 2:] = 0
    weights[3] = 0
    found = np.asarray(jax.pmap(answer, axis_name=AXIS, devices=jax.devices()[:N])(x, weights))
    require(
        found.shape == (N, C), f"every device must return a mean for each channel, shape [{C}], not {found.shape[1:]}"
    )
    total = (weights[..., None] * x).sum((0, 1))
    require(
        not np.allclose(found, total / weights.size, rtol=1e-3),
        f"this still divides by all {weights.size} rows: padding is no example, so count the weights",
    )
    require(not np.isnan(found).any(), "a device that holds padding alone divides 0 by 0: divide after the psum")
    require(
        np.allclose(found, found[0], rtol=1e-3),
        "the devices return different means: the sum and the count must both go through lax.psum(..., 'data')",
    )
    require(not np.allclose(found, x.mean((0, 1)), rtol=1e-3), "padding was added to the sum: multiply by the weights")
    expected = total / weights.sum()
    require(
        np.allclose(found, expected, rtol=1e-3),
        f"the mean of the {weights.sum():.0f} valid examples is {expected.round(3)}, yours is {found[0].round(3)}",
    )
