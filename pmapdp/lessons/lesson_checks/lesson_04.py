"""Checks of lesson 04."""

from unittest import mock

import jax
import numpy as np

from pmapdp.lessons.checks import call_and_watch, refuse, require


def sums_on_devices(answer):
    """Two batches, of which no two devices have the same sums; `eval_step` notes its rows."""
    N = len(jax.devices())
    rng = np.random.default_rng(0)
    scale = rng.normal(size=4).astype(np.float32)
    for b in (3, 1):
        B = N * b
        inputs = rng.normal(size=(B, 4)).astype(np.float32)
        weights = rng.integers(1, 4, size=B).astype(np.float32)
        rows_seen = []

        def eval_step(state, batch, rows_seen=rows_seen):
            inputs, weights = batch
            rows_seen.append(inputs.shape[0])
            outputs = inputs @ state["scale"]
            return {"loss": weights @ outputs, "count": weights.sum()}

        with mock.patch.object(jax, "pmap", wraps=jax.pmap) as pmap:
            try:
                result = answer(eval_step, {"scale": scale}, (inputs, weights))
            except (TypeError, ValueError):
                if pmap.called:
                    require(
                        "in_axes" in pmap.call_args.kwargs,
                        "the state has no device axis, and pmap maps over every "
                        "argument for which in_axes doesn't say None",
                    )
                    require(
                        set(rows_seen) == {b},
                        f"of {B} rows each of {N} devices must get {b}: reshape every "
                        "array to [N, B / N, ...], and keep its other axes",
                    )
                raise
        require(pmap.called, "map `eval_step` over the devices with jax.pmap")
        require(
            set(rows_seen) == {b},
            f"of {B} rows each of {N} devices must get {b}, but eval_step got "
            f"{rows_seen[-1]}: reshape every array to [N, B / N, ...]",
        )
        require(
            isinstance(result, dict) and result.keys() == {"loss", "count"},
            "return a dictionary with the names that eval_step returned, here loss "
            "and count",
        )
        losses = (weights * (inputs @ scale)).reshape(N, b).sum(1)
        counts = weights.reshape(N, b).sum(1)
        for name, numbers in (("loss", losses), ("count", counts)):
            found = np.asarray(result[name])
            require(
                found.shape != (N,),
                f"{name} is still one number from each device: add up the {N} numbers",
            )
            require(
                found.shape == (),
                f"{name} must be one number, yours has the shape {found.shape}",
            )
            alone = (
                f"{name} is device 0's sum alone: out_axes=None promises that all "
                "devices return the same"
            )
            mean = f"{name} is the mean of the {N} devices' sums: add them up"
            if N > 1:
                refuse(found, {alone: numbers[0], mean: numbers.mean()})
            require(
                np.isclose(found, numbers.sum(), rtol=1e-4),
                f"{name} over all {B} rows is {numbers.sum():.4f}, yours is {found:.4f}",
            )


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
    require(
        isinstance(result, jax.Array),
        "the result is a NumPy array, so it's on the host: "
        "return the JAX array, which is on the devices",
    )
    used = len(result.sharding.device_set)
    require(used == 8, f"only {used} of 8 devices worked: {how}")
    largest = max(shard.data.size for shard in result.addressable_shards)
    require(
        largest == m * p,
        f"a device holds {largest} of {result.size} numbers, all of the result: "
        "leave its part on each device, as jax.pmap does",
    )
    again, placed = call_and_watch(answer, a, b)
    require(
        not any(np.isin(np.asarray(again), np.asarray(x)).all() for x in placed),
        "the result was there before you placed it, so one device or the host "
        f"computed all of it: {how}",
    )


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
    alone_in_all = (
        "this is the number of device 0's correct answers, divided by the number of "
        "all examples: out_axes=None promises that all devices return the same"
    )
    summed = f"this is the sum of the {N} devices' accuracies: take their mean"
    mistakes = {
        alone: accuracies[0],
        alone_in_all: accuracies[0] / N,
        summed: accuracies.sum(),
    }
    refuse(result, mistakes)
    require(
        np.isclose(result, expected),
        f"the accuracy over all examples is {expected:.4f}, yours is {result:.4f}",
    )
