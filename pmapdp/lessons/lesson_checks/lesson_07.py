"""Checks of lesson 07's exercises."""

import jax
import numpy as np

from pmapdp.lessons.checks import close, on_devices, refuse, require

N = 4


def global_variance(answer):
    """The weighted variance over all devices: one number, the same on each."""
    values = (
        np.random.default_rng().normal(size=(N, 6)).astype(np.float32)
        + 3 * np.arange(N, dtype=np.float32)[:, None]
    )
    weights = np.ones_like(values)
    found = on_devices(answer, values, weights, shape=())
    apart = "misses how far their means lie apart: take the squared distances from the mean over all devices"
    mistakes = {
        "this is each device's own variance: the sums must go through lax.pmean(..., 'data')": values.var(
            1
        ),
        f"this is the mean of the devices' variances, which {apart}": values.var(
            1
        ).mean(),
    }
    refuse(found, mistakes)
    wanted = f"without any padding the variance over all devices is {values.var():.4f}"
    require(close(found, values.var()), f"{wanted}, yours is {found.round(4)}")

    weights[-1, 1:] = 0
    values = np.where(weights > 0, values, 100).astype(np.float32)
    expected, found = (
        values[weights > 0].var(),
        on_devices(answer, values, weights, shape=()),
    )
    means = np.average(values, axis=1, weights=weights)
    mean_of_means = np.average(
        (values - means.mean()) ** 2, axis=1, weights=weights
    ).mean()
    alike = "every device counts alike, however few examples it holds: average sums and counts, and divide after that"
    refuse(found, {alike: mean_of_means})
    both = f"expected {expected:.4f}, yours is {found.round(4)}"
    padding = f"padding was counted: rows of weight 0 must change neither sums nor count ({both})"
    require(close(found, expected), padding)

    far = (values + 20_000).astype(np.float32)
    expected, found = (
        far[weights > 0].astype(np.float64).var(),
        on_devices(answer, far, weights, shape=()),
    )
    both = f"expected {expected:.3f} around the mean 20,000, yours is {found.round(3)}"
    digits = f"E[x^2] - E[x]^2 loses its digits when the mean is large ({both}): take two passes, the mean first"
    require(close(found, expected, rtol=1e-2), digits)


def standardize_backward(answer):
    """Against the gradient of the global batch in NumPy."""
    random, device = np.random.default_rng(), np.arange(N)[:, None, None]
    x = (random.normal(size=(N, 5, 3)) + 2 * device).astype(np.float32)
    g = (random.normal(size=(N, 5, 3)) + device).astype(np.float32)
    found = on_devices(answer, x, g, shape=(5, 3))

    def gradient(axes_of_x, axes_of_g):
        """The gradient where the means of x and of g go over these axes."""
        mean = x.mean(axes_of_x, keepdims=True)
        deviation = np.sqrt(((x - mean) ** 2).mean(axes_of_x, keepdims=True))
        y = (x - mean) / deviation
        return (
            g
            - g.mean(axes_of_g, keepdims=True)
            - y * (g * y).mean(axes_of_g, keepdims=True)
        ) / deviation

    on_device, over_all = 1, (0, 1)
    only_x = "x is standardized over the global batch, but g.mean(0) and (g * y).mean(0) are still means of this device"
    only_g = "g is averaged over all devices, but the mean and the deviation of x still come from this device alone"
    mistakes = {
        "every mean is over this device alone: average each one with lax.pmean(..., 'data')": (
            on_device,
            on_device,
        ),
        only_x: (over_all, on_device),
        only_g: (on_device, over_all),
    }
    refuse(found, {message: gradient(*axes) for message, axes in mistakes.items()})
    right = gradient(over_all, over_all)
    wanted = f"the first example's gradient should be {right[0, 0].round(4)}, yours is {found[0, 0].round(4)}"
    require(
        close(found, right),
        f"{wanted}; is it the deviation of all values around the global mean?",
    )


def fixed_centre(answer):
    """Centred by the global mean, and one running mean for all devices."""
    random = np.random.default_rng()
    x = (random.normal(size=(N, 5, 3)) + 3 * np.arange(N)[:, None, None]).astype(
        np.float32
    )
    running = random.normal(size=3).astype(np.float32)
    result = jax.pmap(
        answer, axis_name="data", in_axes=(0, None), devices=jax.devices()[:N]
    )(x, running)
    two = isinstance(result, tuple | list) and len(result) == 2
    require(two, "return two arrays: the centred x and the running mean")
    centred, new = map(np.asarray, result)
    mean = x.mean((0, 1))
    is_centred = centred.shape == x.shape and close(centred, x - mean)
    require(is_centred, "the first result must be x minus the mean of the global batch")
    require(
        new.shape == (N, 3),
        f"the running mean has the shape [3], yours has {list(new.shape[1:])}",
    )
    differ = "the running means of the devices still differ: average the mean with lax.pmean before it is used for both"
    require(close(new, new[0], atol=1e-5), differ)
    right = 0.9 * running + 0.1 * mean
    wanted = f"the running mean should be 0.9 * running + 0.1 * mean = {right.round(4)}"
    require(close(new, right), f"{wanted}, yours is {new[0].round(4)}")
