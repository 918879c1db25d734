"""Checks of lesson 08's exercises."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import close, on_devices, refuse, require


def row_keys(answer):
    """Keys that depend on seed, update, layer and index, and on nothing else."""
    numbers = {"seed": 7, "update": 1040, "layer": 300}
    # Two devices of six examples. The index before each is used in a comparison, too.
    indices = 1 + np.random.default_rng(0).permutation(1000)[:12].astype(np.int32)
    rows = len(indices) // 2

    def keys(indices, **changes):
        """The keys `[12, words]`, made on two devices by pmap."""
        changed = {name: numbers[name] + changes.get(name, 0) for name in numbers}

        def keys_of_device(indices):
            keys = answer(*changed.values(), indices)
            if jax.dtypes.issubdtype(keys.dtype, jax.dtypes.prng_key):
                keys = jax.random.key_data(keys)
            require(
                keys.ndim == 2 and len(keys) == rows,
                f"{rows} indices must give {rows} keys, one each: "
                "wrap the fold_in of an index in jax.vmap",
            )
            return keys

        mapped = jax.pmap(keys_of_device, axis_name="data", devices=jax.devices()[:2])
        found = np.asarray(mapped(indices.reshape(2, rows)))
        return found.reshape(len(indices), -1)

    original = keys(indices)
    by_index = np.argsort(indices)
    rolled = keys(np.roll(indices, 1))
    swapped = keys(np.roll(indices, rows))
    require(
        (swapped == np.roll(original, rows, axis=0)).all(),
        "an example's key changes if the example is on another device: "
        "don't fold in the device's number, only the example's index",
    )
    require(
        (rolled == np.roll(original, 1, axis=0)).all()
        and (keys(indices[by_index]) == original[by_index]).all(),
        "an example's key changes with its place in the batch: "
        "fold in its index, do not split a key by position",
    )
    require(
        len(np.unique(original, axis=0)) == len(indices),
        "two examples have the same key: fold in their index",
    )
    unused = {
        "update": "the next update has the same keys and would drop the same "
        "activations; fold in the update",
        "layer": "the next layer has the same keys, so both layers drop the same "
        "places: fold in the layer",
        "seed": "another seed gives the same keys: start from jax.random.key(seed)",
    }
    for name, message in unused.items():
        changed = keys(indices, **{name: 1})
        require(not (changed == original).all(axis=1).any(), message)
    # If two numbers were added up, one more of the first and one less of the second
    # give the same key.
    pairs = (
        ("seed", "update"),
        ("seed", "layer"),
        ("update", "layer"),
        ("seed", "index"),
        ("update", "index"),
        ("layer", "index"),
    )
    for first, second in pairs:
        if second == "index":
            changed = keys(indices - 1, **{first: 1})
        else:
            changed = keys(indices, **{first: 1, second: -1})
        require(
            not (changed == original).all(axis=1).any(),
            f"one more {first} and one less {second} give the same key, because the "
            "numbers were added up: fold them in one after the other",
        )
    # After these changes the formula gives the same number as before.
    formulas = {
        "1000 * seed + update": {"seed": 1, "update": -1000},
        "update * layer": {"update": 300 - 1040, "layer": 1040 - 300},
    }
    for formula, changes in formulas.items():
        require(
            not (keys(indices, **changes) == original).all(axis=1).any(),
            f"two examples have the same key if {formula} is the same: don't make one "
            "number of several, fold them in one after the other",
        )
    for factor in (10, 100, 1000):
        next_layer = keys(indices - factor, layer=1)
        require(
            not (next_layer == original).all(axis=1).any(),
            f"index {factor} of a layer has the key of index 0 of the next layer: "
            "don't make one number of several, fold them in one after the other",
        )
    orders = (("update", "layer"), ("layer", "update"))
    for factor, (first, second) in itertools.product((10, 100, 1000), orders):
        changed = keys(indices, **{first: -1, second: factor})
        require(
            not (changed == original).all(axis=1).any(),
            f"two examples have the same key if {factor} * {first} + {second} is the "
            "same: don't make one number of several, fold them in one after the other",
        )


def exact_accuracy(answer):
    """Against NumPy, for numbers of examples that divide and that do not."""
    rng = np.random.default_rng(0)
    N, b, D, C = len(jax.devices()), 3, 4, 3
    # Full batches; a device's part of one; a ragged one; fewer examples than devices.
    for n in (2 * N * b, N * b + 2, 2 * N * b - N - 5, N - 1):
        x = rng.normal(size=(n, D)).astype(np.float32)
        kernel = rng.normal(size=(D, C)).astype(np.float32)
        rows_seen = []
        unsplit = []

        def note_sharding(sharding, unsplit=unsplit):
            if sharding.is_fully_replicated:
                unsplit.append(sharding)

        def predict(x, kernel=kernel, rows_seen=rows_seen):
            require(
                x.ndim == 2 and x.shape[1] == D,
                f"predict takes rows [rows, {D}], yours gave it {list(x.shape)}",
            )
            # A pmap or shard_map around this call splits the rows over its devices.
            mesh = jax.sharding.get_abstract_mesh()
            parts = math.prod(mesh.shape[axis] for axis in mesh.manual_axes)
            rows_seen.append(len(x) * parts)
            logits = jnp.dot(x, kernel)
            if parts == 1:  # split by jit, as the compiler has chosen it, or not at all
                jax.debug.inspect_array_sharding(logits, callback=note_sharding)
            return logits

        guesses = (x @ kernel).argmax(-1)
        labels = np.where(rng.random(n) < 0.5, guesses, 1 + (guesses == 1))
        # The last two are wrong, so that it shows if they are left out.
        labels[-2:] = (guesses[-2:] + 1) % C
        correct = guesses == labels
        result = np.asarray(answer(predict, x, labels, b))
        require(
            result.shape == (),
            f"the accuracy is one number, yours has the shape {result.shape}",
        )
        most = max(rows_seen, default=0)
        require(
            most <= N * b,
            f"predict fits into memory for {N * b} rows at a time, and yours gave it "
            f"{most}: batches of N * b",
        )
        # With fewer rows than N * b, one device may do the last batch.
        require(
            n % (N * b) > 0 or not unsplit,
            f"predict isn't split over the {N} devices: with pmap, or with a split batch "
            f"under jit, each of them computes b = {b} rows of a batch",
        )
        accuracy = correct.mean()
        full_batches = n // (N * b) * N * b
        dropped = (
            f"of {n} examples yours counts only the first {full_batches}: "
            "pad the last batch instead of dropping it"
        )
        if 0 < full_batches < n:
            refuse(result, {dropped: correct[:full_batches].mean()}, atol=1e-6)
        require(
            not np.isnan(result),
            "a device that holds padding alone divides 0 by 0: "
            "return sums and counts, and divide at the end",
        )
        hint = "these are full batches: add up the correct ones, and divide by n"
        if full_batches < n:
            hint = (
                "padding has weight 0, in the sum and in the count, and batches are "
                "added up, not averaged"
            )
        require(
            close(result, accuracy, rtol=0, atol=1e-6),
            f"{correct.sum()} of {n} examples are right, {accuracy:.4f}, and yours says "
            f"{result:.4f}: {hint}",
        )


def fixed_mean(answer):
    """The mean over valid examples, with padding on two of four devices."""
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype(np.float32) + 4
    weights = np.ones((4, 5), np.float32)
    weights[2, 2:] = 0
    weights[3] = 0
    result = on_devices(answer, x, weights, shape=(3,))
    n = weights.sum()
    total = (weights[..., None] * x).sum((0, 1))
    all_rows = (
        f"this still divides by all {weights.size} rows: "
        "padding is no example, so count the weights"
    )
    refuse(result, {all_rows: total / weights.size})
    require(
        not np.isnan(result).any(),
        "a device that holds padding alone divides 0 by 0: divide after the psum",
    )
    require(
        close(result, result[0]),
        "the devices return different means: "
        "the sum and the count must both go through lax.psum(..., 'data')",
    )
    padding = "padding was added to the sum: multiply by the weights"
    undivided = f"this is the sum: divide by the number of valid examples, {n:.0f}"
    mean_of_means = (
        "this is a mean of the devices' means, in which a device with few examples "
        "counts as much as a full one: psum the sum and the count, and divide once"
    )
    counts = np.maximum(weights.sum(1), 1)[:, None]
    device_means = (weights[..., None] * x).sum(1) / counts  # of padding alone: 0
    mistakes = {
        padding: x.mean((0, 1)),
        f"{padding}, as in the count": x.sum((0, 1)) / n,
        undivided: total,
        mean_of_means: device_means.mean(0),
    }
    refuse(result, mistakes)
    expected = total / n
    require(
        close(result, np.broadcast_to(expected, result.shape)),
        f"the mean of the {n:.0f} valid examples is {expected.round(3)}, "
        f"yours is {result[0].round(3)}",
    )
