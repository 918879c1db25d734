"""Checks of lesson 04."""

from unittest import mock

import jax
import numpy as np
from jax import P
from jax.sharding import NamedSharding

from pmapdp.lessons.checks import mesh_of, refuse, require


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


def put_copies(copies):
    """Put `copies` `[N, ...]` on N devices, as an array that JAX takes for replicated."""
    replicated = NamedSharding(mesh_of(len(copies)), P())
    arrays = [
        jax.device_put(copy, device)
        for copy, device in zip(copies, jax.devices(), strict=False)
    ]
    return jax.make_array_from_single_device_arrays(
        copies.shape[1:], replicated, arrays
    )


def largest_difference(answer):
    """Four states of two arrays, whose copies differ in another way each time."""
    N = len(jax.devices())
    rng = np.random.default_rng(0)
    kernel = np.tile(rng.integers(-4, 4, size=(3, 2)).astype(np.float32), (N, 1, 1))
    bias = np.tile(np.array([1.0, 5.0], np.float32), (N, 1))

    def answer_for(kernel, bias):
        state = {"bias": put_copies(bias), "kernel": put_copies(kernel)}
        found = np.asarray(answer(state))
        require(
            found.shape == (),
            f"the difference is one number, yours has the shape {found.shape}",
        )
        return float(found)

    found = answer_for(kernel, bias)
    require(
        found == 0,
        f"here all copies are equal, so the result is 0, and yours is {found}: compare "
        "copies of the same number on different devices",
    )
    for array, index in ((bias, (3, 1)), (kernel, (4, 2, 0))):
        for change, word in ((0.5, "larger"), (-0.5, "smaller")):
            array[index] += change
            found = answer_for(kernel, bias)
            array[index] -= change
            require(
                found != 0,
                f"one number on device {index[0]} is {word} by 0.5 than the other "
                "copies, and yours is 0: look at all arrays, and at the copy of every "
                "device. NumPy and jnp read one copy alone",
            )
            require(
                found > 0,
                f"the difference of two copies is 0.5, yours is {found}: subtract the "
                "smaller one from the larger one",
            )
            require(
                np.isclose(found, 0.5),
                f"one number on device {index[0]} differs by 0.5 from the other "
                f"copies, yours is {found:.4f}",
            )
    kernel[1, 0, 1] += 0.25
    kernel[2, 0, 1] -= 0.5
    kernel[5, 2, 1] += 0.625
    bias[6, 0] -= 0.125
    found = answer_for(kernel, bias)
    mistakes = {
        "this compares every copy with device 0's: two others may be further "
        "apart": 0.625,
        "this adds up the arrays' differences: take the largest": 0.875,
        "the largest and the smallest copy must be of the same number": 1.125,
    }
    refuse(found, mistakes)
    require(
        np.isclose(found, 0.75),
        f"the copies on devices 1 and 2 of a number differ by 0.75, yours is {found:.4f}",
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
