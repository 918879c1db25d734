"""Checks of lesson 05's exercises."""

import jax
import numpy as np

from pmapdp.lessons.checks import require

RATE = 0.1
CLOSE = {"rtol": 1e-3, "atol": 1e-4}  # float32, sums of about 40 products of about 1


def linear_problem(N):
    """Random parameters `[D]`, examples `[N, b, D]` and `[N, b]`; every device's gradient is clearly another."""
    random = np.random.default_rng()
    D, b = int(random.integers(3, 6)), int(random.choice([3, 5, 7]))  # b is not N: the messages tell them apart
    w, x = random.normal(size=D).astype(np.float32), random.normal(size=(N, b, D)).astype(np.float32)
    y = x @ w + random.normal(size=(N, b)) + 2 * x.sum(-1) + 3 * x[..., 0] * np.arange(N)[:, None]
    return w, x, y.astype(np.float32)


def summed_gradient(w, x, y, weights):
    """NumPy's gradient `[D]` of the weighted sum of the losses over `[..., D]` examples, in float64."""
    return ((weights * (x.astype(np.float64) @ w - y))[..., None] * x).reshape(-1, len(w)).sum(0)


def close(found, expected):
    """Equal up to float32's rounding."""
    return np.allclose(found, expected, **CLOSE)


def on_devices(answer, N, w, *arrays):
    """Return the results of N devices, `[N, D]`; reject other shapes."""
    axes = {"axis_name": "data", "in_axes": (None, *[0] * len(arrays)), "devices": jax.devices()[:N]}
    found = np.asarray(jax.pmap(answer, **axes)(w, *arrays))
    require(
        found.shape == (N, len(w)),
        f"every device must return an array of shape [{len(w)}] like w, yours has the shape {list(found.shape[1:])}",
    )
    return found


def step(answer):
    """Gradient descent on the mean gradient of all devices."""
    for N in (4, 8):
        w, x, y = linear_problem(N)
        ones = np.ones_like(y)
        gradient = summed_gradient(w, x, y, ones) / y.size
        found = on_devices(answer, N, w, x, y)
        require(
            close(found, found[0]),
            "the devices return different parameters: average their gradients with lax.pmean(..., 'data') before the "
            "update",
        )
        moved = w - found[0]
        require(
            not close(moved, RATE * N * gradient),
            f"the step is {N} times too long on {N} devices: psum adds the devices' means up, pmean averages them",
        )
        require(not close(moved, -RATE * gradient), "the loss would grow: subtract the gradient")
        require(not close(moved, gradient), "multiply the gradient by the learning rate 0.1")
        require(not close(found[0], gradient), "this is the gradient: return the parameters after the update")
        require(
            not close(moved, RATE * gradient * y.shape[1]),
            f"the step is {y.shape[1]} times too long, the number of a device's examples: take the mean over them",
        )
        require(
            close(moved, RATE * gradient),
            f"the step should be 0.1 x the gradient of the mean loss over all {y.size} examples, "
            f"{(RATE * gradient).round(3)}, and is {moved.round(3)}",
        )


def global_gradient(answer):
    """Sums over counts, also with padding and with a device that has no example."""
    N = 4
    w, x, y = linear_problem(N)
    weights = np.ones_like(y)
    weights[1, 1:] = 0  # device 1: a single example, and far off, so that its share of the mean tells answers apart
    y[1, 0] = x[1, 0] @ w + 10

    def expected():
        return summed_gradient(w, x, y, weights) / weights.sum()

    found = on_devices(answer, N, w, x, y, weights)
    require(
        close(found, found[0]),
        "the devices return different gradients: gradient and count must both go through lax.psum(..., 'data')",
    )
    local = np.stack([summed_gradient(w, *each) / each[2].sum() for each in zip(x, y, weights, strict=True)])
    require(
        not close(found[0], local.mean(0)),
        "this is the mean of the devices' means, in which the single example of a device counts more than others: add up "
        "sums and counts with psum, and divide once",
    )
    require(
        not close(found[0], expected() * weights.sum()),
        f"this is the sum over all examples: divide by their number, here {weights.sum():.0f}",
    )
    require(
        not close(found[0], expected() * weights.sum() / weights.size),
        f"you divided by all {weights.size} rows, padding included: the count is the sum of the weights",
    )
    padding_counts = summed_gradient(w, x, y, np.ones_like(y))
    require(
        not any(close(found[0], padding_counts / count) for count in (weights.size, weights.sum())),
        "padding was counted: multiply each example's gradient by its weight",
    )
    require(
        close(found[0], expected()),
        f"the gradient of the mean loss over the {weights.sum():.0f} valid examples is {expected().round(3)}, "
        f"yours is {found[0].round(3)}",
    )
    weights[-1] = 0  # device 3: padding alone
    found = on_devices(answer, N, w, x, y, weights)
    require(
        not np.isnan(found).any(),
        "a device that holds padding alone divides 0 by 0: divide after the psum, by the count of all devices",
    )
    require(close(found[0], expected()), "wrong where a device holds padding alone: its sum and its count are 0")


def fixed_clipping(answer):
    """The average gradient is clipped, not each device's."""
    random = np.random.default_rng()
    N, D = 4, 5
    # Of one sign, so that the average is not short where no gradient is.
    gradients = np.abs(random.normal(size=(N, D))).astype(np.float32)
    for size in (0.1, 10.0):  # in the first case no gradient is longer than 1, in the second all are
        local = gradients / np.linalg.norm(gradients, axis=1, keepdims=True) * size * np.arange(1, N + 1)[:, None]
        local = local.astype(np.float32) / N
        mean = local.mean(0)
        found = np.asarray(jax.pmap(answer, axis_name="data", devices=jax.devices()[:N])(local))
        require(found.shape == (N, D), f"the gradient has the shape ({D},), yours has {found.shape[1:]}")
        require(
            close(found, found[0]),
            "the devices return different gradients: average them with lax.pmean(..., 'data')",
        )
        clipped = local / np.maximum(np.linalg.norm(local, axis=1, keepdims=True), 1)
        require(
            size < 1 or not close(found[0], clipped.mean(0)),
            "each device clips its own gradient, so the devices with long gradients count less: average first",
        )
        require(
            size > 1 or not close(found[0], N * mean),
            "this is the sum over the devices: use lax.pmean",
        )
        expected = mean / max(np.linalg.norm(mean), 1)
        require(
            close(found[0], expected),
            f"for an average gradient of length {np.linalg.norm(mean):.3f} the result should be {expected.round(3)}, "
            f"yours is {found[0].round(3)}",
        )
