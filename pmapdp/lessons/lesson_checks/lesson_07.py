"""Checks of lesson 07's exercises."""

import jax
import numpy as np

from pmapdp.lessons.checks import require

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
        "this is each device's own variance: the sums must go through lax.pmean(..., 'data')",
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
    means = np.average(values, axis=1, weights=weights)
    mean_of_means = np.average((values - means.mean()) ** 2, axis=1, weights=weights).mean()
    require(
        not np.allclose(found, mean_of_means, rtol=1e-3),
        "every device counts alike, however few examples it holds: average sums and counts, and divide after that",
    )
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


def standardize_backward(answer):
    """Against the gradient of the global batch in NumPy."""
    random = np.random.default_rng()
    N, b, C = 4, 5, 3
    x = random.normal(size=(N, b, C)) + 2 * np.arange(N)[:, None, None]
    g = random.normal(size=(N, b, C)) + np.arange(N)[:, None, None]
    x, g = x.astype(np.float32), g.astype(np.float32)
    found = np.asarray(jax.pmap(answer, axis_name=AXIS, devices=jax.devices()[:N])(x, g))
    require(found.shape == x.shape, f"the gradient has the shape of x, {[b, C]}, yours has {list(found.shape[1:])}")

    def gradient(mean_of_x, mean_of_g):
        mean = mean_of_x(x)
        deviation = np.sqrt(mean_of_x((x - mean) ** 2))
        y = (x - mean) / deviation
        return (g - mean_of_g(g) - y * mean_of_g(g * y)) / deviation

    def over_device(array):
        return array.mean(1, keepdims=True)

    def over_all(array):
        return array.mean((0, 1), keepdims=True)

    right = gradient(over_all, over_all)
    mistakes = {
        "every mean is over this device alone: average each one with lax.pmean(..., 'data')": (
            over_device,
            over_device,
        ),
        "x is standardized over the global batch, but g.mean(0) and (g * y).mean(0) are still means of this device": (
            over_all,
            over_device,
        ),
        "g is averaged over all devices, but the mean and the deviation of x are still those of this device": (
            over_device,
            over_all,
        ),
    }
    for message, means in mistakes.items():
        require(not np.allclose(found, gradient(*means), rtol=1e-3, atol=1e-4), message)
    require(
        np.allclose(found, right, rtol=1e-3, atol=1e-4),
        f"the first example's gradient should be {right[0, 0].round(4)}, yours is {found[0, 0].round(4)}; is the deviation "
        "that of all values around the global mean?",
    )


def fixed_centre(answer):
    """Centred by the global mean, and one running mean for all devices."""
    random = np.random.default_rng()
    N, b, C = 4, 5, 3
    x = (random.normal(size=(N, b, C)) + 3 * np.arange(N)[:, None, None]).astype(np.float32)
    running = random.normal(size=C).astype(np.float32)
    mapped = jax.pmap(answer, axis_name=AXIS, in_axes=(0, None), devices=jax.devices()[:N])
    result = mapped(x, running)
    require(
        isinstance(result, tuple | list) and len(result) == 2, "return two arrays: the centred x and the running mean"
    )
    centred, new = map(np.asarray, result)
    mean = x.mean((0, 1))
    require(
        centred.shape == x.shape and np.allclose(centred, x - mean, atol=1e-4),
        "the first result must be x minus the mean of the global batch",
    )
    require(new.shape == (N, C), f"the running mean has the shape {[C]}, yours has {list(new.shape[1:])}")
    require(
        np.allclose(new, new[0], atol=1e-5),
        "the running means of the devices still differ: average the mean with lax.pmean before it is used for both",
    )
    require(
        np.allclose(new, 0.9 * running + 0.1 * mean, atol=1e-4),
        f"the running mean should be 0.9 * running + 0.1 * mean = {(0.9 * running + 0.1 * mean).round(4)}, yours is "
        f"{new[0].round(4)}",
    )
