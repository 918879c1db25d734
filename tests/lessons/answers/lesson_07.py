"""Answers to the exercises of lesson 07; see ../test_exercises.py."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax


def local_variance(values, weights):
    mean = (weights * values).sum() / weights.sum()
    return (weights * jnp.square(values - mean)).sum() / weights.sum()


def mean_of_variances(values, weights):
    return lax.pmean(local_variance(values, weights), "data")


def ignores_weights(values, weights):
    mean = lax.pmean(values.mean(), "data")
    return lax.pmean(jnp.square(values - mean).mean(), "data")


def one_pass(values, weights):
    count = lax.psum(weights.sum(), "data")
    mean, square = (lax.psum((weights * x).sum(), "data") / count for x in (values, values**2))
    return square - mean**2


def backward(x, g, *, x_mean, g_mean):
    mean = x_mean(x.mean(0))
    deviation = jnp.sqrt(x_mean(jnp.square(x - mean).mean(0)))
    y = (x - mean) / deviation
    return (g - g_mean(g.mean(0)) - y * g_mean((g * y).mean(0))) / deviation


def over_devices(mean):
    return lax.pmean(mean, "data")


def here(mean):
    return mean


def mean_of_deviations(x, g):
    y = (x - over_devices(x.mean(0))) / over_devices(x.std(0))
    return (g - over_devices(g.mean(0)) - y * over_devices((g * y).mean(0))) / over_devices(x.std(0))


def own_running_mean(x, running):
    return x - lax.pmean(x.mean(0), "data"), 0.9 * running + 0.1 * x.mean(0)


def sum_for_mean(x, running):
    return x - lax.pmean(x.mean(0), "data"), 0.9 * running + 0.1 * lax.psum(x.mean(0), "data")


def variance_by_gathering(values, weights):
    values, weights = (lax.all_gather(each, "data", tiled=True) for each in (values, weights))
    mean = (weights * values).sum() / weights.sum()
    return (weights * (values - mean) ** 2).sum() / weights.sum()


def variance_around_one_value(values, weights):
    here = jnp.where(weights > 0, values, -jnp.inf).max()
    shifted = jnp.where(weights > 0, values - lax.pmax(here, "data"), 0)
    count, total, squares = lax.psum((weights.sum(), shifted.sum(), (shifted**2).sum()), "data")
    return squares / count - (total / count) ** 2


def backward_by_gathering(x, g):
    x, g = (lax.all_gather(each, "data", tiled=True) for each in (x, g))
    y = (x - x.mean(0)) / x.std(0)
    gradient = (g - g.mean(0) - y * (g * y).mean(0)) / x.std(0)
    b = len(x) // lax.axis_size("data")
    return lax.dynamic_slice_in_dim(gradient, lax.axis_index("data") * b, b)


def backward_by_autodiff(x, g):
    def standardize(x):
        mean = lax.pmean(x.mean(0), "data")
        return (x - mean) / jnp.sqrt(lax.pmean(jnp.square(x - mean).mean(0), "data"))

    return jax.vjp(standardize, x)[1](g)[0]


def centre_by_sums(x, running):
    mean = lax.psum(x.sum(0), "data") / lax.psum(len(x), "data")
    return x - mean, running + 0.1 * (mean - running)


def centre_and_average_the_running_mean(x, running):
    centred = x - lax.pmean(x, "data").mean(0)
    return [centred, lax.pmean(0.9 * running + 0.1 * x.mean(0), "data")]


WRONG = {
    "global_variance": [
        ("each device's own variance", local_variance),
        ("how far their means lie apart", mean_of_variances),
        ("padding was counted", ignores_weights),
        ("loses its digits", one_pass),
    ],
    "standardize_backward": [
        ("every mean is over this device alone", partial(backward, x_mean=here, g_mean=here)),
        ("still means of this device", partial(backward, x_mean=over_devices, g_mean=here)),
        ("are still those of this device", partial(backward, x_mean=here, g_mean=over_devices)),
        ("around the global mean", mean_of_deviations),
    ],
    "fixed_centre": [
        ("still differ", own_running_mean),
        ("should be 0.9 * running", sum_for_mean),
        ("the mean of the global batch", lambda x, running: (x - x.mean(0), running)),
    ],
}

RIGHT = {
    "global_variance": [variance_by_gathering, variance_around_one_value],
    "standardize_backward": [backward_by_gathering, backward_by_autodiff],
    "fixed_centre": [centre_by_sums, centre_and_average_the_running_mean],
}
