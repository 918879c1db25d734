"""Checks of lesson 08's exercises."""

import math

import jax
import numpy as np

from pmapdp.lessons.checks import close, on_devices, refuse, require


def row_keys(answer):
    """Keys that depend on seed, update, layer and index, and on nothing else."""
    random = np.random.default_rng()
    seed, update, layer = (int(number) for number in random.integers(1, 1000, 3))
    indices = 1 + random.permutation(1000)[:12].astype(
        np.int32
    )  # from 1: the one before each is an index, too

    def keys(seed, update, layer, indices):
        found = answer(seed, update, layer, indices)
        if jax.dtypes.issubdtype(found.dtype, jax.dtypes.prng_key):
            found = jax.random.key_data(found)
        found, n = np.asarray(found), len(indices)
        one_each = f"{n} indices must give {n} keys, one each: wrap the fold_in of an index in jax.vmap"
        require(found.ndim == 2 and len(found) == n, one_each)
        return found

    whole = keys(seed, update, layer, indices)
    require(
        len(np.unique(whole, axis=0)) == len(indices),
        "two examples have the same key: fold in their index",
    )
    order = random.permutation(len(indices))
    halves = np.concatenate(
        [keys(seed, update, layer, half) for half in (indices[:6], indices[6:])]
    )
    same = (keys(seed, update, layer, indices[order]) == whole[order]).all() and (
        halves == whole
    ).all()
    place = "an example's key changes with its place in the batch: fold in its index, do not split a key by position"
    require(same, place)

    added = "two examples share a key, because numbers were added up (seed + update): fold them in one after the other"
    shared = {  # with changes of seed, update, layer and index
        (
            0,
            1,
            0,
            0,
        ): "the next update has the same keys and would drop the same activations; fold in the update",
        (
            0,
            0,
            1,
            0,
        ): "the next layer has the same keys, so both layers drop the same places: fold in the layer",
        (
            1,
            0,
            0,
            0,
        ): "another seed gives the same keys: start from jax.random.key(seed)",
        **dict.fromkeys(
            [(0, 1, 0, -1), (1, -1, 0, 0), (0, 1, -1, 0), (1, 0, -1, 0), (0, 0, 1, -1)],
            added,
        ),
    }
    for (of_seed, of_update, of_layer, of_index), message in shared.items():
        found = keys(
            seed + of_seed, update + of_update, layer + of_layer, indices + of_index
        )
        require(not (found == whole).all(axis=1).any(), message)


def exact_accuracy(answer):
    """Against NumPy, for numbers of examples that divide and that do not; by pmap, jit or shard_map."""
    random = np.random.default_rng()
    N, b, D, C = len(jax.devices()), 3, 4, 3
    for n in (2 * N * b, N * b + 2, 2 * N * b - N - 5, N - 1):
        x, kernel = (
            random.normal(size=(n, D)).astype(np.float32),
            random.normal(size=(D, C)).astype(np.float32),
        )
        seen = []

        def predict(x, kernel=kernel, seen=seen):
            require(
                x.ndim == 2 and x.shape[1] == D,
                f"predict takes rows [rows, {D}], yours gave it {list(x.shape)}",
            )
            mesh = (
                jax.sharding.get_abstract_mesh()
            )  # a pmap or shard_map around this call splits rows over its devices
            seen.append(
                len(x) * math.prod(mesh.shape[axis] for axis in mesh.manual_axes)
            )
            return x @ kernel

        guesses = (x @ kernel).argmax(-1)
        labels = np.where(random.random(n) < 0.5, guesses, 1 + (guesses == 1))
        labels[-2:] = (
            guesses[-2:] + 1
        ) % C  # the last two are wrong, so that it shows if they are left out
        right = guesses == labels
        found = np.asarray(answer(predict, x, labels, b))
        require(
            found.shape == (),
            f"the accuracy is one number, yours has the shape {found.shape}",
        )
        most = max(seen, default=0)
        fits = f"predict fits into memory for {N * b} rows at a time, and yours gave it {most}: batches of N * b"
        require(most <= N * b, fits)
        accuracy, kept = right.mean(), n // (N * b) * N * b
        if kept and not close(accuracy, right[:kept].mean(), atol=1e-6):
            dropped = f"of {n} examples yours counts only the first {kept}: pad the last batch instead of dropping it"
            refuse(found, {dropped: right[:kept].mean()}, atol=1e-6)
        only_padding = "a device that holds padding alone divides 0 by 0: return sums and counts, and divide at the end"
        require(not np.isnan(found), only_padding)
        wanted = f"{right.sum()} of {n} examples are right, {accuracy:.4f}, and yours says {found:.4f}"
        weighted = "padding has weight 0, in the sum and in the count, and batches are added up, not averaged"
        require(close(found, accuracy, rtol=0, atol=1e-6), f"{wanted}: {weighted}")


def fixed_mean(answer):
    """The mean over valid examples, with padding on two of four devices."""
    x = np.random.default_rng().normal(size=(4, 5, 3)).astype(np.float32) + 4
    weights = np.ones((4, 5), np.float32)
    weights[2, 2:] = 0
    weights[3] = 0
    found = on_devices(answer, x, weights, shape=(3,))
    total = (weights[..., None] * x).sum((0, 1))
    rows = f"this still divides by all {weights.size} rows: padding is no example, so count the weights"
    refuse(found, {rows: total / weights.size})
    require(
        not np.isnan(found).any(),
        "a device that holds padding alone divides 0 by 0: divide after the psum",
    )
    both = "the sum and the count must both go through lax.psum(..., 'data')"
    require(close(found, found[0]), f"the devices return different means: {both}")
    refuse(
        found, {"padding was added to the sum: multiply by the weights": x.mean((0, 1))}
    )
    right = total / weights.sum()
    wanted = f"the mean of the {weights.sum():.0f} valid examples is {right.round(3)}"
    require(close(found, right), f"{wanted}, yours is {found[0].round(3)}")
