"""Solutions of lesson 07's exercises. Each function runs on one device, inside pmap with axis_name="data"."""

import jax.numpy as jnp
from jax import lax


def global_moments(values, weights):
    """Mean and variance of the valid values on all devices: `[b]`, `[b]` to `[]`, `[]`."""
    # The three means go through one all-reduce, and the number of devices cancels in both divisions. If you divide
    # before the all-reduce, each device counts the same, however few examples it has.
    sums = weights.sum(), (weights * values).sum(), (weights * values**2).sum()
    count, first, second = lax.pmean(sums, "data")
    mean = first / count
    return mean, second / count - mean**2


def standardize_backward(x, g):
    """Gradient `[b, C]` with respect to this device's x, from the gradient g of the output."""
    mean = lax.pmean(x.mean(0), "data")
    deviation = jnp.sqrt(lax.pmean(jnp.square(x - mean).mean(0), "data"))
    y = (x - mean) / deviation
    # The outputs of all devices depend on this device's x, through the mean and the deviation. So both means over the
    # gradient are means over the global batch, as in the forward pass.
    shift, stretch = lax.pmean((g.mean(0), (g * y).mean(0)), "data")
    return (g - shift - y * stretch) / deviation


def fixed_centre(x, running):
    """The centred `x` `[b, C]`, and the new running mean `[C]`, equal on all devices."""
    # Whatever goes into the state must be averaged first: the state is only replicated if all devices compute the same.
    mean = lax.pmean(x.mean(0), "data")
    return x - mean, 0.9 * running + 0.1 * mean
