"""Batch normalisation that gives one answer however the batch is split. Lesson 07 teaches this file.

Ioffe and Szegedy, "Batch normalization", ICML 2015. Shapes: b examples on this device, C channels.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from pmapdp.models.layers import AxisName, Context


class BatchNorm(nnx.Module):
    """Batch normalisation over the global batch, without its padding, under every strategy.

    Momentum, epsilon and the (biased) running variance are those of Keras. There is no scale, as in the networks here,
    where a ReLU and a linear layer or a linear layer alone follow; and there is a bias unless `use_bias` is False.

    Flax' own layer averages the devices' means, which is wrong as soon as devices hold different numbers
    of valid examples; here the devices add sums and counts.
    """

    def __init__(
        self,
        features: int,
        *,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        use_bias: bool = True,
        param_dtype=jnp.float32,
    ):
        self.momentum, self.epsilon = momentum, epsilon
        self.bias = nnx.Param(jnp.zeros(features, param_dtype)) if use_bias else None
        self.mean = nnx.BatchStat(jnp.zeros(features, param_dtype))
        self.variance = nnx.BatchStat(jnp.ones(features, param_dtype))

    def __call__(self, x: jax.Array, context: Context) -> jax.Array:
        """`[b, ..., C]` to `[b, ..., C]`; in training also moves the running statistics."""
        wide = x.astype(self.mean.dtype)  # moments of bfloat16 activations are taken in float32
        if context.train:
            weights = jnp.ones(len(x)) if context.weights is None else context.weights
            y, mean, variance, count = normalise(wide, weights.astype(wide.dtype), self.epsilon, context.axis_name)
            momentum = jnp.where(count > 0, self.momentum, 1).astype(wide.dtype)  # padding alone moves nothing
            self.mean[...] = momentum * self.mean[...] + (1 - momentum) * mean
            self.variance[...] = momentum * self.variance[...] + (1 - momentum) * variance
        else:
            y = (wide - self.mean[...]) * lax.rsqrt(self.variance[...] + self.epsilon)
        if self.bias is not None:
            y += self.bias[...]
        return y.astype(x.dtype)


def total(value: jax.Array, axis_name: AxisName) -> jax.Array:
    """The sum over the devices; with `axis_name` None `value` is over the global batch already."""
    return value if axis_name is None else lax.psum(value, axis_name)


def moments(x: jax.Array, weights: jax.Array, axis_name: AxisName) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean and variance `[C]` of the valid examples of the global batch, and the number of their pixels.

    Two passes: E[x^2] - E[x]^2 would lose digits when the mean is large.
    """
    weights = weights.reshape(-1, *[1] * (x.ndim - 1))
    axes = tuple(range(x.ndim - 1))
    count = total(weights.sum(), axis_name) * math.prod(x.shape[1:-1])
    divisor = jnp.maximum(count, 1)
    mean = total((weights * x).sum(axes), axis_name) / divisor
    variance = total((weights * jnp.square(x - mean)).sum(axes), axis_name) / divisor
    return mean, variance, count


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def normalise(x: jax.Array, weights: jax.Array, epsilon: float, axis_name: AxisName) -> tuple[jax.Array, ...]:
    """`(x - mean) / sqrt(variance + epsilon)`, then mean, variance and count of `moments`, which have no gradient.

    The gradient of `x` is written out: it needs two sums over the global batch, which travel together, where JAX would
    add up those of the variance, then those of the mean.
    """
    return forward(x, weights, epsilon, axis_name)[0]


def forward(x: jax.Array, weights: jax.Array, epsilon: float, axis_name: AxisName) -> tuple[Any, Any]:
    """What `normalise` returns, and what its gradient needs."""
    mean, variance, count = moments(x, weights, axis_name)
    scale = lax.rsqrt(variance + epsilon)
    y = (x - mean) * scale
    return (y, mean, variance, count), (y, weights, scale, jnp.maximum(count, 1))


def backward(epsilon: float, axis_name: AxisName, residuals: Any, gradients: Any) -> tuple[jax.Array, jax.Array]:
    """The gradient of `x`, and zeros for the weights. Section 3 of the paper, with each example's weight."""
    y, weights, scale, count = residuals
    dy, axes = gradients[0], tuple(range(y.ndim - 1))
    of_mean, of_scale = total(jnp.stack([dy.sum(axes), (dy * y).sum(axes)]), axis_name) / count
    dx = scale * (dy - weights.reshape(-1, *[1] * (y.ndim - 1)) * (of_mean + y * of_scale))
    return dx, jnp.zeros_like(weights)


normalise.defvjp(forward, backward)
