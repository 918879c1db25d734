"""Checks of lesson 04."""

import jax
import numpy as np

from pmapdp.lessons.checks import call_and_watch, refuse, require


def require_all_devices(result, how):
    """Reject a result that isn't spread over all devices. `how` says what to map over."""
    require(
        isinstance(result, jax.Array),
        "the result is a NumPy array, so it's on the host: "
        "return the JAX array, which is on the devices",
    )
    N = len(jax.devices())
    used = len(result.sharding.device_set)
    require(used == N, f"only {used} of {N} devices worked: {how}")
    largest = max(shard.data.size for shard in result.addressable_shards)
    require(
        largest * N == result.size,
        f"a device holds {largest} of {result.size} numbers, all of the result: "
        "leave its part on each device, as jax.pmap does",
    )


def require_computed_on_devices(answer, arrays, how):
    """Reject a result that was computed elsewhere and then spread over the devices."""
    result, placed = call_and_watch(answer, *arrays)
    numbers = np.asarray(result)
    require(
        not any(np.isin(numbers, np.asarray(array)).all() for array in placed),
        "the result was there before you placed it, so one device or the host "
        f"computed all of it: {how}",
    )


def dot_product(answer):
    """B pairs on N devices."""
    N = len(jax.devices())
    rng = np.random.default_rng(0)
    for b in (1, 3):
        B = N * b
        xs, ys = rng.normal(size=(2, B, 10)).astype(np.float32)
        result = answer(xs, ys)
        if result.size == B:
            advice = "reshape the result at the end"
        else:
            advice = "each pair of rows gives one number, so use jax.vmap inside pmap"
        require(
            result.shape == (B,),
            f"for {B} pairs the shape should be ({B},), not {result.shape}: {advice}",
        )
        error = np.abs(np.asarray(result) - (xs * ys).sum(1)).max()
        require(
            error < 1e-4,
            f"a number is off by {error:.3g}: "
            "result i should be xs[i] . ys[i], in that order",
        )
        how = "map over the device axis with jax.pmap"
        require_all_devices(result, how)
        require_computed_on_devices(answer, (xs, ys), how)


def block_product(answer):
    """Eight blocks, one on each device, in the right order."""
    rng = np.random.default_rng(0)
    m, p, K = 2, 3, 5
    a = rng.normal(size=(2 * m, K)).astype(np.float32)
    b = rng.normal(size=(K, 4 * p)).astype(np.float32)
    result = answer(a, b)
    require(
        result.shape == (8, m, p),
        f"for a {a.shape} and b {b.shape} the result should have the shape "
        f"{(8, m, p)}, yours has {result.shape}",
    )
    blocks = np.stack([row @ b for row in a.reshape(2, m, K)])  # [2, m, 4 p]
    blocks = blocks.reshape(2, m, 4, p).swapaxes(1, 2)  # [2, 4, m, p]
    expected = blocks.reshape(8, m, p)
    found = np.asarray(result)
    order = (
        "all blocks are there in another order: "
        "device 4 i + j multiplies row block i with column block j"
    )
    refuse(found, {order: blocks.swapaxes(0, 1).reshape(8, m, p)})
    wrong = [d for d in range(8) if not np.allclose(found[d], expected[d], atol=1e-4)]
    require(
        not wrong,
        f"the blocks {wrong} are not row block i of a times column block j of b, "
        "for 4 i + j",
    )
    how = "map over the stacked blocks with jax.pmap"
    require_all_devices(result, how)
    require_computed_on_devices(answer, (a, b), how)


def fixed_accuracy(answer):
    """The mean over all devices, which have different accuracies."""
    N = len(jax.devices())
    rng = np.random.default_rng(0)
    b, D, C = 5, 4, 3
    w = rng.normal(size=(D, C)).astype(np.float32)
    x = rng.normal(size=(N, b, D)).astype(np.float32)
    guesses = (x @ w).argmax(-1)
    labels = guesses.copy()
    for device in range(N):
        wrong = slice((device + 2) % b + 1)
        labels[device, wrong] = (guesses[device, wrong] + 1) % C
    accuracies = (guesses == labels).mean(1)
    expected = accuracies.mean()
    result = np.asarray(answer(w, x, labels))
    require(
        result.shape == (),
        f"the accuracy is one number, yours has the shape {result.shape}",
    )
    alone = (
        "this is the accuracy of device 0 alone: "
        "out_axes=None promises that all devices return the same"
    )
    summed = f"this is the sum of the {N} devices' accuracies: take their mean"
    refuse(result, {alone: accuracies[0], summed: accuracies.sum()})
    require(
        np.isclose(result, expected),
        f"the accuracy over all examples is {expected:.4f}, yours is {result:.4f}",
    )
