"""Checks of lesson 05's exercises."""

import numpy as np

from pmapdp.lessons.checks import close, on_devices, refuse, require

RATE = 0.1


def linear_problem(N):
    """Random parameters `[4]`, examples `[N, 5, 4]` and `[N, 5]`; the devices' gradients are clearly different."""
    random = np.random.default_rng()
    w, x = (
        random.normal(size=4).astype(np.float32),
        random.normal(size=(N, 5, 4)).astype(np.float32),
    )
    y = (
        x @ w
        + random.normal(size=(N, 5))
        + 2 * x.sum(-1)
        + 3 * x[..., 0] * np.arange(N)[:, None]
    )
    return w, x, y.astype(np.float32)


def summed_gradient(w, x, y, weights):
    """NumPy's gradient `[D]` of the weighted sum of the losses over `[..., D]` examples, in float64."""
    return (
        ((weights * (x.astype(np.float64) @ w - y))[..., None] * x)
        .reshape(-1, len(w))
        .sum(0)
    )


def step(answer):
    """Gradient descent on the mean gradient of all devices."""
    for N in (4, 8):
        w, x, y = linear_problem(N)
        update = RATE * summed_gradient(w, x, y, np.ones_like(y)) / y.size
        found = on_devices(answer, w, x, y, N=N, in_axes=(None, 0, 0), shape=w.shape)
        different = (
            "average their gradients with lax.pmean(..., 'data') before the update"
        )
        require(
            close(found, found[0]),
            f"the devices return different parameters: {different}",
        )
        moved, b = w - found[0], y.shape[1]
        too_long = f"the step is {N} times too long on {N} devices: psum adds their means up, pmean averages them"
        mistakes = {
            too_long: N * update,
            "the loss would grow: subtract the gradient": -update,
            "multiply the gradient by the learning rate 0.1": update / RATE,
            "this is the gradient: return the parameters after the update": w
            - update / RATE,
            f"the step is {b} times too long, the number of a device's examples: take the mean over them": b
            * update,
        }
        refuse(moved, mistakes)
        wanted = f"0.1 x the gradient of the mean loss over all {y.size} examples, {update.round(3)}"
        require(
            close(moved, update),
            f"the step should be {wanted}, and is {moved.round(3)}",
        )


def global_gradient(answer):
    """Sums over counts, also with padding and with a device that has no example."""
    w, x, y = linear_problem(4)
    weights = np.ones_like(y)
    weights[1, 1:] = (
        0  # device 1: a single example, and far off, so that its share of the mean tells answers apart
    )
    y[1, 0] = x[1, 0] @ w + 10

    def gradients():
        """Return the gradients of the answer, and the right one."""
        found = on_devices(
            answer, w, x, y, weights, in_axes=(None, 0, 0, 0), shape=w.shape
        )
        return found, summed_gradient(w, x, y, weights) / weights.sum()

    found, expected = gradients()
    different = "gradient and count must both go through lax.psum(..., 'data')"
    require(
        close(found, found[0]), f"the devices return different gradients: {different}"
    )
    n, rows = weights.sum(), weights.size
    local = np.stack(
        [
            summed_gradient(w, *each) / each[2].sum()
            for each in zip(x, y, weights, strict=True)
        ]
    )
    with_padding = summed_gradient(w, x, y, np.ones_like(y))
    single = "in which the single example of a device counts more than others: add up sums and counts with psum"
    padding = "padding was counted: multiply each example's gradient by its weight"
    mistakes = {
        f"this is the mean of the devices' means, {single}, and divide once": local.mean(
            0
        ),
        f"this is the sum over all examples: divide by their number, here {n:.0f}": n
        * expected,
        f"you divided by all {rows} rows, padding included: the count is the sum of the weights": n
        * expected
        / rows,
    }
    refuse(found[0], mistakes)
    for count in (rows, n):
        refuse(found[0], {padding: with_padding / count})
    wanted = f"the gradient of the mean loss over the {n:.0f} valid examples is {expected.round(3)}"
    require(close(found[0], expected), f"{wanted}, yours is {found[0].round(3)}")
    weights[-1] = 0  # device 3: padding alone
    found, expected = gradients()
    only_padding = "a device that holds padding alone divides 0 by 0: divide after the psum, by the whole count"
    require(not np.isnan(found).any(), only_padding)
    require(
        close(found[0], expected),
        "wrong if a device holds padding alone: its sum and its count are 0",
    )


def fixed_clipping(answer):
    """The average gradient is clipped, not each device's."""
    N = 4
    # Of one sign, so that the average of long gradients is long.
    directions = np.abs(np.random.default_rng().normal(size=(N, 5)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    for size in (
        0.1,
        10.0,
    ):  # in the first case no gradient is longer than 1, in the second all are
        local = (directions * size * np.arange(1, N + 1)[:, None] / N).astype(
            np.float32
        )
        mean = local.mean(0)
        found = on_devices(answer, local, shape=mean.shape)
        different = "take both the gradient and its length from the average, lax.pmean(gradient, 'data')"
        require(
            close(found, found[0]),
            f"the devices return different gradients: {different}",
        )
        each_clipped = (
            local / np.maximum(np.linalg.norm(local, axis=1, keepdims=True), 1)
        ).mean(0)
        own = "each device clips its own gradient, so the devices with long gradients count less: average first"
        summed = "this is the sum over the devices: use lax.pmean"
        refuse(found[0], {own: each_clipped} if size > 1 else {summed: N * mean})
        length = np.linalg.norm(mean)
        expected = mean / max(length, 1)
        wanted = f"for an average gradient of length {length:.3f} the result should be {expected.round(3)}"
        require(close(found[0], expected), f"{wanted}, yours is {found[0].round(3)}")
