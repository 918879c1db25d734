"""Checks of lesson 05's exercises."""

import numpy as np

from pmapdp.lessons.checks import close, on_devices, refuse, require

RATE = 0.1


def linear_problem(N):
    """Parameters `[4]` and examples `[N, 5, 4]`, `[N, 5]`, different on each device."""
    rng = np.random.default_rng(0)
    w = rng.normal(size=4).astype(np.float32)
    x = rng.normal(size=(N, 5, 4)).astype(np.float32)
    noise = rng.normal(size=(N, 5))
    devices = np.arange(N)[:, None]
    # A slope that grows with the device makes the gradients clearly different.
    y = x @ w + noise + 2 * x.sum(-1) + 3 * x[..., 0] * devices
    return w, x, y.astype(np.float32)


def summed_gradient(w, x, y, weights):
    """The gradient `[D]` of the weighted sum of losses over `[..., D]`, in float64."""
    errors = weights * (x.astype(np.float64) @ w - y)
    return (errors[..., None] * x).reshape(-1, len(w)).sum(0)


def step(answer):
    """Gradient descent on the mean gradient of all devices."""
    for N in (4, 8):
        w, x, y = linear_problem(N)
        b = y.shape[1]
        update = RATE * summed_gradient(w, x, y, np.ones_like(y)) / y.size
        result = on_devices(answer, w, x, y, N=N, in_axes=(None, 0, 0), shape=w.shape)
        require(
            close(result, result[0]),
            "the devices return different parameters: "
            "average their gradients with lax.pmean(..., 'data') before the update",
        )
        moved = w - result[0]
        too_long = (
            f"the step is {N} times too long on {N} devices: "
            "psum adds their means up, pmean averages them"
        )
        sum_over_rows = (
            f"the step is {b} times too long, the number of a device's examples: "
            "take the mean over them"
        )
        parameters_wanted = (
            "this is the gradient: return the parameters after the update"
        )
        mistakes = {
            too_long: N * update,
            "the loss would grow: subtract the gradient": -update,
            "multiply the gradient by the learning rate 0.1": update / RATE,
            parameters_wanted: w - update / RATE,
            sum_over_rows: b * update,
        }
        refuse(moved, mistakes)
        require(
            close(moved, update),
            f"the step should be 0.1 x the gradient of the mean loss over all {y.size} "
            f"examples, {update.round(3)}, and is {moved.round(3)}",
        )


def global_gradient(answer):
    """Sums over counts, also with padding and with a device that has no example."""
    w, x, y = linear_problem(4)
    weights = np.ones_like(y)
    # Device 1 has a single example, and one that is far off. So the answers differ
    # that give this device another share of the mean.
    weights[1, 1:] = 0
    y[1, 0] = x[1, 0] @ w + 10
    axes = (None, 0, 0, 0)
    result = on_devices(answer, w, x, y, weights, in_axes=axes, shape=w.shape)
    require(
        close(result, result[0]),
        "the devices return different gradients: "
        "gradient and count must both go through lax.psum(..., 'data')",
    )
    n = weights.sum()
    rows = weights.size
    expected = summed_gradient(w, x, y, weights) / n
    local_means = []
    for device in range(4):
        local_sum = summed_gradient(w, x[device], y[device], weights[device])
        local_means.append(local_sum / weights[device].sum())
    mean_of_means = (
        "this is the mean of the devices' means, in which the single example of a "
        "device counts more than others: add up sums and counts with psum, "
        "and divide once"
    )
    undivided = (
        "this is the sum over all examples: "
        f"divide by their number, here {n:.0f}, on all devices together"
    )
    all_rows = (
        f"you divided by all {rows} rows, padding included: "
        "the count is the sum of the weights"
    )
    mixed = (
        "one of gradient and count is a sum over the devices, and the other a mean: "
        "put both through lax.psum, or both through lax.pmean"
    )
    mistakes = {
        mean_of_means: np.mean(local_means, axis=0),
        undivided: n * expected,
        all_rows: n * expected / rows,
    }
    refuse(result[0], mistakes)
    for ratio in (4, 1 / 4):  # of the two, on 4 devices
        refuse(result[0], {mixed: ratio * expected})
    with_padding = summed_gradient(w, x, y, np.ones_like(y))
    for count in (rows, n):
        padding = "padding was counted: multiply each example's gradient by its weight"
        refuse(result[0], {padding: with_padding / count})
    require(
        close(result[0], expected),
        f"the gradient of the mean loss over the {n:.0f} valid examples is "
        f"{expected.round(3)}, yours is {result[0].round(3)}",
    )

    weights[3] = 0  # device 3: padding alone
    expected = summed_gradient(w, x, y, weights) / weights.sum()
    result = on_devices(answer, w, x, y, weights, in_axes=axes, shape=w.shape)
    require(
        not np.isnan(result).any(),
        "a device that holds padding alone divides 0 by 0: "
        "divide after the psum, by the whole count",
    )
    require(
        close(result, np.broadcast_to(expected, result.shape)),
        "wrong if a device holds padding alone: its sum and its count are 0",
    )


def fixed_clipping(answer):
    """The average gradient is clipped, not each device's."""
    N = 4
    # Of one sign, so that the average of long gradients is long.
    directions = np.abs(np.random.default_rng(0).normal(size=(N, 5)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    lengths = np.arange(1, N + 1)[:, None] / N
    # First no gradient is longer than 1. Then some are and their average is not. Then
    # all are.
    for size in (0.1, 1.2, 10.0):
        local = (directions * size * lengths).astype(np.float32)
        local_lengths = np.linalg.norm(local, axis=1, keepdims=True)
        mean = local.mean(0)
        result = on_devices(answer, local, shape=mean.shape)
        require(
            close(result, result[0]),
            "the devices return different gradients: take both the gradient and its "
            "length from the average, lax.pmean(gradient, 'data')",
        )
        length = np.linalg.norm(mean)
        expected = mean / max(length, 1)
        each_clipped = (local / np.maximum(local_lengths, 1)).mean(0)
        each_first = (
            "each device clips its own gradient, so the devices with long gradients "
            "count less: average first"
        )
        summed = "this is the sum over the devices: use lax.pmean"
        stretched = (
            "short gradients were stretched to length 1: only longer ones change"
        )
        mistakes = {
            each_first: each_clipped,
            summed: N * mean,
            stretched: mean / length,
        }
        for message, wrong in mistakes.items():
            # Not every size tells every mistake.
            if not close(wrong, expected):
                refuse(result[0], {message: wrong})
        require(
            close(result[0], expected),
            f"for an average gradient of length {length:.3f} the result should be "
            f"{expected.round(3)}, yours is {result[0].round(3)}",
        )
