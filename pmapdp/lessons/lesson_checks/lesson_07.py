"""Checks of lesson 07's exercises."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import close, on_devices, refuse, require

N = 4


def global_moments(answer):
    """The weighted mean and variance over all devices, the same two numbers on each."""

    def moments(values, weights):
        result = answer(values, weights)
        require(
            isinstance(result, tuple | list) and len(result) == 2,
            "return two numbers, the mean and the variance",
        )
        for name, number in zip(("mean", "variance"), result, strict=True):
            require(
                np.shape(number) == (),
                f"the {name} is one number, yours has the shape {np.shape(number)}",
            )
        return jnp.stack(result)

    noise = np.random.default_rng(0).normal(size=(N, 6)).astype(np.float32)
    values = noise + 3 * np.arange(N, dtype=np.float32)[:, None]
    weights = np.ones_like(values)
    mean, variance = on_devices(moments, values, weights, shape=(2,)).T
    own = (
        "this is each device's own {}: the sums must go through lax.pmean(..., 'data')"
    )
    mean_of_variances = (
        "this is the mean of the devices' variances, which misses how far their means "
        "lie apart: average the squares instead"
    )
    refuse(mean, {own.format("mean"): values.mean(1)})
    require(
        close(mean, values.mean()),
        f"without any padding the mean over all devices is {values.mean():.4f}, "
        f"yours is {mean.round(4)}",
    )
    mistakes = {
        own.format("variance"): values.var(1),
        mean_of_variances: values.var(1).mean(),
        "this is the standard deviation: the variance is its square": values.std(),
        "the variance divides by n, not by n - 1": values.var(ddof=1),
        "this is the mean of the squares: subtract the square of the mean": (
            np.square(values).mean()
        ),
    }
    refuse(variance, mistakes)
    require(
        close(variance, values.var()),
        f"without any padding the variance over all devices is {values.var():.4f}, "
        f"yours is {variance.round(4)}",
    )

    # Device 3 keeps one example. Its padding holds 100.
    weights[3, 1:] = 0
    values = np.where(weights > 0, values, 100).astype(np.float32)
    n = weights.sum()
    valid = values[weights > 0]
    local_means = np.average(values, axis=1, weights=weights)
    local_squares = np.average(values**2, axis=1, weights=weights)
    mean, variance = on_devices(moments, values, weights, shape=(2,)).T
    alike = (
        "every device counts alike, however few examples it holds: "
        "average sums and counts, and divide after that"
    )
    padding = "padding was counted: rows of weight 0 must change neither sums nor count"
    refuse(mean, {alike: local_means.mean()})
    for wrong_mean in (values.mean(), valid.sum() / weights.size, values.sum() / n):
        refuse(mean, {padding: wrong_mean})
    require(
        close(mean, valid.mean()),
        f"with padding, the mean of the {n:.0f} valid values is {valid.mean():.4f}, "
        f"yours is {mean.round(4)}",
    )
    # The variance around the correct mean, with squares that were divided on each
    # device, or with the squares of the padding, or with its count.
    refuse(variance, {alike: local_squares.mean() - valid.mean() ** 2})
    for wrong_square in (
        np.square(values).sum() / n,
        np.square(values).mean(),
        np.square(valid).sum() / weights.size,
    ):
        refuse(variance, {padding: wrong_square - valid.mean() ** 2})
    squares = np.square(values - valid.mean())
    for wrong_variance in (squares.mean(), squares.sum() / n):
        refuse(variance, {padding: wrong_variance})
    require(
        close(variance, valid.var()),
        f"with padding, the variance of the {n:.0f} valid values is {valid.var():.4f}, "
        f"yours is {variance.round(4)}",
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
