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

EXACT = lax.Precision.HIGHEST  # accelerators would round the factors of a product
MANY = 64  # channels that fill a processor's vectors


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
            pixels, W = lines(y)
            y = (pixels + along(self.bias[...], W)).reshape(x.shape)
        return y.astype(x.dtype)


def total(value: jax.Array, axis_name: AxisName) -> jax.Array:
    """The sum over the devices; with `axis_name` None `value` is over the global batch already."""
    return value if axis_name is None else lax.psum(value, axis_name)


def lines(x: jax.Array) -> tuple[jax.Array, int]:
    """`[..., W, C]` as a matrix `[L, W * C]` of lines of pixels, and W: a few channels alone would leave a processor's
    vectors half empty. Where channels are many, or in `[b, C]`, a line is one pixel: W = 1."""
    W = x.shape[-2] if x.ndim > 2 and x.shape[-1] < MANY else 1
    return x.reshape(-1, W * x.shape[-1]), W


def along(values: jax.Array, W: int) -> jax.Array:
    """`[C]` for each of the W pixels of a line: `[W * C]`. A product, because XLA would repeat a copy for each line."""
    if W == 1:
        return values
    return jnp.matmul(values, jnp.tile(jnp.eye(len(values), dtype=values.dtype), W), precision=EXACT)


def sums(factors: jax.Array, x: jax.Array, W: int) -> jax.Array:
    """The sum over the lines, each times its factor `[L]`, and over their pixels: `[C]`."""
    return jnp.matmul(factors, x, precision=EXACT).reshape(W, -1).sum(0)


def moments(x: jax.Array, weights: jax.Array, axis_name: AxisName) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean and variance `[C]` of the valid examples of the global batch, and the number of their pixels.

    Two passes: E[x^2] - E[x]^2 would lose digits when the mean is large.
    """
    pixels, W = lines(x)
    factors = jnp.repeat(weights, len(pixels) // len(x))
    count = total(weights.sum(), axis_name) * math.prod(x.shape[1:-1])
    divisor = jnp.maximum(count, 1)
    mean = total(sums(factors, pixels, W), axis_name) / divisor
    variance = total(sums(factors, jnp.square(pixels - along(mean, W)), W), axis_name) / divisor
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
    pixels, W = lines(x)
    y = ((pixels - along(mean, W)) * along(scale, W)).reshape(x.shape)
    return (y, mean, variance, count), (y, weights, scale, jnp.maximum(count, 1))


def backward(epsilon: float, axis_name: AxisName, residuals: Any, gradients: Any) -> tuple[jax.Array, jax.Array]:
    """The gradient of `x`, and zeros for the weights. Section 3 of the paper, with each example's weight."""
    y, weights, scale, count = residuals
    (pixels, W), (dy, _) = lines(y), lines(gradients[0])
    factors, ones = jnp.repeat(weights, len(pixels) // len(y)), jnp.ones(len(dy), dy.dtype)
    of_mean, of_scale = total(jnp.stack([sums(ones, dy, W), sums(ones, dy * pixels, W)]), axis_name) / count
    dx = along(scale, W) * (dy - factors[:, None] * (along(of_mean, W) + pixels * along(of_scale, W)))
    return dx.reshape(y.shape), jnp.zeros_like(weights)


normalise.defvjp(forward, backward)
