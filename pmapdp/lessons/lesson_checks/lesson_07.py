"""Checks of lesson 07's exercises."""

import jax
import numpy as np

from pmapdp.lessons.checks import close, on_devices, refuse, require

N = 4


def global_variance(answer):
    """The weighted variance over all devices: one number, the same on each."""
    noise = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
    values = noise + 3 * np.arange(N, dtype=np.float32)[:, None]
    weights = np.ones_like(values)
    result = on_devices(answer, values, weights, shape=())
    each_alone = (
        "this is each device's own variance: "
        "the sums must go through lax.pmean(..., 'data')"
    )
    mean_of_variances = (
        "this is the mean of the devices' variances, which misses how far their means "
        "lie apart: take the squared distances from the mean over all devices"
    )
    deviation = "this is the standard deviation: the variance is its square"
    mistakes = {
        each_alone: values.var(1),
        mean_of_variances: values.var(1).mean(),
        deviation: values.std(),
    }
    refuse(result, mistakes)
    require(
        close(result, values.var()),
        f"without any padding the variance over all devices is {values.var():.4f}, "
        f"yours is {result.round(4)}",
    )

    # Device 3 keeps one example. Its padding holds 100.
    weights[3, 1:] = 0
    values = np.where(weights > 0, values, 100).astype(np.float32)
    mean = np.average(values, weights=weights)
    local_means = np.average(values, axis=1, weights=weights)
    squares = (values - mean) ** 2
    squares_of_means = (values - local_means.mean()) ** 2
    n = weights.sum()
    result = on_devices(answer, values, weights, shape=())
    devices_count_alike = (
        "every device counts alike, however few examples it holds: "
        "average sums and counts, and divide after that"
    )
    # A local division in the second pass only, in the first only, and in both.
    wrong_divisions = (
        np.average(squares, axis=1, weights=weights).mean(),
        (weights * squares_of_means).sum() / n,
        np.average(squares_of_means, axis=1, weights=weights).mean(),
    )
    for wrong in wrong_divisions:
        refuse(result, {devices_count_alike: wrong})
    padding = "padding was counted: rows of weight 0 must change neither sums nor count"
    # Counted everywhere, in the squares, in the second count, in the mean, and in both
    # counts.
    mean_with_padding = values.mean()
    mean_of_rows = (weights * values).sum() / weights.size
    wrong_sums = (
        values.var(),
        squares.sum() / n,
        (weights * squares).sum() / weights.size,
        (weights * (values - mean_with_padding) ** 2).sum() / n,
        (weights * (values - mean_of_rows) ** 2).sum() / weights.size,
    )
    for wrong in wrong_sums:
        refuse(result, {padding: wrong})
    expected = values[weights > 0].var()
    require(
        close(result, expected),
        f"with padding, the variance of the {n:.0f} valid values is {expected:.4f}, "
        f"yours is {result.round(4)}",
    )

    far = (values + 20_000).astype(np.float32)
    expected = far[weights > 0].astype(np.float64).var()
    result = on_devices(answer, far, weights, shape=())
    require(
        close(result, expected, rtol=1e-2),
        "E[x^2] - E[x]^2 loses its digits when the mean is large (expected "
        f"{expected:.3f} around the mean 20,000, yours is {result.round(3)}): "
        "take two passes, the mean first",
    )


def standardize_backward(answer):
    """Against the gradient of the global batch in NumPy."""
    rng = np.random.default_rng(0)
    devices = np.arange(N)[:, None, None]
    x = (rng.normal(size=(N, 5, 3)) + 2 * devices).astype(np.float32)
    g = (rng.normal(size=(N, 5, 3)) + devices).astype(np.float32)
    result = on_devices(answer, x, g, shape=(5, 3))

    def gradient(axes_of_x, axes_of_g):
        """The gradient if the means of x and of g go over these axes."""
        mean = x.mean(axes_of_x, keepdims=True)
        deviation = np.sqrt(((x - mean) ** 2).mean(axes_of_x, keepdims=True))
        y = (x - mean) / deviation
        shift = g.mean(axes_of_g, keepdims=True)
        stretch = (g * y).mean(axes_of_g, keepdims=True)
        return (g - shift - y * stretch) / deviation

    on_device = 1
    over_all = (0, 1)
    all_local = (
        "every mean is over this device alone: "
        "average each one with lax.pmean(..., 'data')"
    )
    only_x = (
        "x is standardized over the global batch, but g.mean(0) and (g * y).mean(0) "
        "are still means of this device"
    )
    only_g = (
        "g is averaged over all devices, but the mean and the deviation of x still "
        "come from this device alone"
    )
    mistakes = {
        all_local: gradient(on_device, on_device),
        only_x: gradient(over_all, on_device),
        only_g: gradient(on_device, over_all),
    }
    refuse(result, mistakes)
    expected = gradient(over_all, over_all)
    require(
        close(result, expected),
        f"the first example's gradient should be {expected[0, 0].round(4)}, yours is "
        f"{result[0, 0].round(4)}; are g.mean(0) and (g * y).mean(0) both averaged, "
        "and is it the deviation of all values around the global mean?",
    )


def fixed_centre(answer):
    """Centred by the global mean, and one running mean for all devices."""
    rng = np.random.default_rng(0)
    devices = np.arange(N)[:, None, None]
    x = (rng.normal(size=(N, 5, 3)) + 3 * devices).astype(np.float32)
    running = rng.normal(size=3).astype(np.float32)
    mapped = jax.pmap(
        answer, axis_name="data", in_axes=(0, None), devices=jax.devices()[:N]
    )
    result = mapped(x, running)
    require(
        isinstance(result, tuple | list) and len(result) == 2,
        "return two arrays: the centred x and the running mean",
    )
    centred, new_running = map(np.asarray, result)
    mean = x.mean((0, 1))
    require(
        centred.shape == x.shape and close(centred, x - mean),
        "the first result must be x minus the mean of the global batch",
    )
    require(
        new_running.shape == (N, 3),
        f"the running mean has the shape [3], yours has {list(new_running.shape[1:])}",
    )
    require(
        close(new_running, new_running[0], atol=1e-5),
        "the running means of the devices still differ: "
        "average the mean with lax.pmean before it is used for both",
    )
    expected = 0.9 * running + 0.1 * mean
    require(
        close(new_running[0], expected),
        f"the running mean should be 0.9 * running + 0.1 * mean = {expected.round(4)}, "
        f"yours is {new_running[0].round(4)}",
    )
