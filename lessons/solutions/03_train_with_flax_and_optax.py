"""Solutions of lesson 03's exercises."""

import jax
import jax.numpy as jnp


def momentum_step(parameter, velocity, gradient, rate):
    """(new parameter, new velocity)"""
    velocity = 0.9 * velocity + gradient
    return parameter - rate * velocity, velocity


def warmup(peak, steps):
    """A function of the number of updates made."""
    return lambda step: peak * jnp.minimum(step / steps, 1)


def decayed(params, factor):
    """The same pytree with smaller weights and the same biases."""
    return jax.tree.map(lambda array: array if array.ndim == 1 else factor * array, params)
