"""Checks of lesson 08's exercises."""

import math

import jax
import numpy as np

from pmapdp.lessons.checks import require

AXIS = "data"


def row_keys(answer):
    """Keys that depend on seed, update, layer and index, and on nothing else."""
    random = np.random.default_rng()
    seed, update, layer = (int(number) for number in random.integers(1, 1000, 3))
    indices = 1 + random.permutation(1000)[:12].astype(np.int32)  # from 1: the one before each is an index, too

    def keys(seed, update, layer, indices):
        found = answer(seed, update, layer, indices)
        if jax.dtypes.issubdtype(found.dtype, jax.dtypes.prng_key):
            found = jax.random.key_data(found)
        found = np.asarray(found)
        require(
            found.ndim == 2 and len(found) == len(indices),
            f"{len(indices)} indices must give {len(indices)} keys, one each: wrap the fold_in of an index in jax.vmap",
        )
        return found

    whole = keys(seed, update, layer, indices)
    require(len(np.unique(whole, axis=0)) == len(indices), "two examples have the same key: fold in their index")
    order = random.permutation(len(indices))
    halves = np.concatenate([keys(seed, update, layer, half) for half in (indices[:6], indices[6:])])
    require(
        (keys(seed, update, layer, indices[order]) == whole[order]).all() and (halves == whole).all(),
        "an example's key changes with its place in the batch: fold in its index, do not split a key by position",
    )

    def shared(seed, update, layer, indices):
        return (keys(seed, update, layer, indices) == whole).all(axis=1).any()

    require(
        not shared(seed, update + 1, layer, indices),
        "the next update has the same keys and would drop the same activations; fold in the update",
    )
    require(
        not shared(seed, update, layer + 1, indices),
        "the next layer has the same keys, so both layers drop the same places: fold in the layer",
    )
    require(
        not shared(seed + 1, update, layer, indices),
        "another seed gives the same keys: start from jax.random.key(seed)",
    )
    require(
        not shared(seed, update + 1, layer, indices - 1)
        and not shared(seed + 1, update - 1, layer, indices)
        and not shared(seed, update + 1, layer - 1, indices)
        and not shared(seed + 1, update, layer - 1, indices)
        and not shared(seed, update, layer + 1, indices - 1),
        "different examples share a key, because numbers were added up (seed + update, or update + index): fold them in "
        "one after the other",
    )


def exact_accuracy(answer):
    """Against NumPy, for numbers of examples that divide and that do not; by pmap, jit or shard_map."""
    random = np.random.default_rng()
    N, b, D, C = len(jax.devices()), 3, 4, 3
    for n in (2 * N * b, N * b + 2, 2 * N * b - N - 5, N - 1):
        x, kernel = random.normal(size=(n, D)).astype(np.float32), random.normal(size=(D, C)).astype(np.float32)
        seen = []

        def predict(x, kernel=kernel, seen=seen):
            require(x.ndim == 2 and x.shape[1] == D, f"predict takes rows [rows, {D}], yours gave it {list(x.shape)}")
            mesh = (
                jax.sharding.get_abstract_mesh()
            )  # the devices that a pmap or shard_map around this call splits rows over
            seen.append(len(x) * math.prod(mesh.shape[axis] for axis in mesh.manual_axes))
            return x @ kernel

        guesses = (x @ kernel).argmax(-1)
        labels = np.where(random.random(n) < 0.5, guesses, 1 + (guesses == 1))
        labels[-2:] = (guesses[-2:] + 1) % C  # the last two are wrong, so that it shows if they are left out
        right = guesses == labels
        found = np.asarray(answer(predict, x, labels, b))
        require(found.shape == (), f"the accuracy is one number, yours has the shape {found.shape}")
        require(
            max(seen, default=0) <= N * b,
            f"predict fits into memory for {N * b} rows at a time, and yours gave it {max(seen, default=0)}: batches of N * b",
        )
        kept = n // (N * b) * N * b
        require(
            np.isclose(found, right.mean(), atol=1e-6)
            or not kept
            or not np.isclose(found, right[:kept].mean(), atol=1e-6),
            f"of {n} examples yours counts only the first {kept}: pad the last batch instead of dropping it",
        )
        require(
            not np.isnan(found),
            "a device that holds padding alone divides 0 by 0: return sums and counts, and divide once, at the end",
        )
        require(
            np.isclose(found, right.mean(), atol=1e-6),
            f"{right.sum()} of {n} examples are right, {right.mean():.4f}, and yours says {found:.4f}: padding has weight 0, "
            "in the sum and in the count, and batches are added up, not averaged",
        )


def fixed_mean(answer):
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
