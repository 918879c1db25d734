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
from jax.flatten_util import ravel_pytree

from pmapdp.models.layers import EXACT, AxisName, Context, along

FAR = 0.9  # share of E[(x - k)^2] that (mean - k)^2 may have: beyond, their difference loses over a decimal digit
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
        bias = None if self.bias is None else self.bias[...]
        if context.train:
            weights = jnp.ones(len(x)) if context.weights is None else context.weights
            examples = weights.sum() if context.count is None else context.count
            y, mean, variance, count = normalise(
                wide,
                weights.astype(wide.dtype),
                examples.astype(wide.dtype),
                bias,
                self.mean[...],
                self.epsilon,
                context.axis_name,
            )
            momentum = jnp.where(count > 0, self.momentum, 1).astype(wide.dtype)  # padding alone moves nothing
            self.mean[...] = momentum * self.mean[...] + (1 - momentum) * mean
            self.variance[...] = momentum * self.variance[...] + (1 - momentum) * variance
        else:
            y = (wide - self.mean[...]) * lax.rsqrt(self.variance[...] + self.epsilon)
            y = y if bias is None else y + bias
        return y.astype(x.dtype)


def total(values: Any, axis_name: AxisName) -> Any:
    """The sums over the devices of all arrays in `values`, which travel together; with `axis_name` None they are over
    the global batch already."""
    if axis_name is None:
        return values
    vector, restore = ravel_pytree(values)
    return restore(lax.psum(vector, axis_name))


def lines(x: jax.Array) -> tuple[jax.Array, int]:
    """`[..., W, C]` as a matrix `[L, W * C]` of lines of pixels, and W: a few channels alone would leave a processor's
    vectors half empty. Where channels are many, or in `[b, C]`, a line is one pixel: W = 1."""
    W = x.shape[-2] if x.ndim > 2 and x.shape[-1] < MANY else 1
    return x.reshape(-1, W * x.shape[-1]), W


def sums(factors: jax.Array, x: jax.Array, W: int) -> jax.Array:
    """The sums over the lines, each times its factor, and over their pixels.

    `[..., L]` and `[..., L, W * C]` to `[..., C]`.
    """
    of_lines = jnp.matmul(factors[..., None, :], x, precision=EXACT)
    return of_lines.reshape(*x.shape[:-2], W, -1).sum(-2)


def moments(
    x: jax.Array, weights: jax.Array, examples: jax.Array, near: jax.Array, axis_name: AxisName
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean and variance `[C]` of the valid examples of the global batch, and the number of their pixels.

    With k near the mean, E[(x - k)^2] - (mean - k)^2 is the variance, and the sums of x and (x - k)^2 travel together.
    Far from the mean that difference has too few digits; then, and only then, a second exchange adds up the squares
    around the mean itself. All devices hold the same sums, so they decide alike.
    """
    pixels, W = lines(x)
    factors = jnp.repeat(weights, len(pixels) // len(x))

    def squares_around(centre: jax.Array) -> jax.Array:
        return sums(factors, jnp.square(pixels - along(centre, W)), W)

    here = sums(factors, pixels, W), squares_around(near), examples * math.prod(x.shape[1:-1])
    added, squares, count = total(here, axis_name)
    divisor = jnp.maximum(count, 1)
    mean, squares = added / divisor, squares / divisor
    shift = jnp.square(mean - near)
    variance = lax.cond(
        (shift > FAR * squares).any(),
        lambda: total(squares_around(mean), axis_name) / divisor,
        lambda: squares - shift,
    )
    return mean, variance, count


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def normalise(
    x: jax.Array,
    weights: jax.Array,
    examples: jax.Array,
    bias: jax.Array | None,
    near: jax.Array,
    epsilon: float,
    axis_name: AxisName,
) -> tuple[jax.Array, ...]:
    """`(x - mean) / sqrt(variance + epsilon) + bias`, then mean, variance and count of `moments`, without a gradient.

    The gradient of `x` is written out: it needs two sums over the global batch, which travel together, where JAX would
    add up those of the variance, then those of the mean. One of them, before it travels, is the gradient of the bias.

    Args:
        x: `[b, ..., C]`
        weights: `[b]`, 1 or 0 for padding.
        examples: `[]` their sum.
        bias: `[C]`, or None.
        near: `[C]` what the mean is likely near: its running value.
        epsilon: added to the variance.
        axis_name: the mapped axis or axes, or None.
    """
    return forward(x, weights, examples, bias, near, epsilon, axis_name)[0]


def forward(
    x: jax.Array,
    weights: jax.Array,
    examples: jax.Array,
    bias: jax.Array | None,
    near: jax.Array,
    epsilon: float,
    axis_name: AxisName,
) -> tuple[Any, Any]:
    """What `normalise` returns, and what its gradient needs."""
    mean, variance, count = moments(x, weights, examples, near, axis_name)
    scale = lax.rsqrt(variance + epsilon)
    pixels, W = lines(x)
    normal = (pixels - along(mean, W)) * along(scale, W)
    y = normal if bias is None else normal + along(bias, W)
    return (y.reshape(x.shape), mean, variance, count), (normal, weights, scale, jnp.maximum(count, 1), bias)


def backward(epsilon: float, axis_name: AxisName, residuals: Any, gradients: Any) -> tuple[Any, ...]:
    """The gradients of `x` and `bias`; the others have none. Section 3 of the paper, with each example's weight."""
    normal, weights, scale, count, bias = residuals
    dy, W = lines(gradients[0])
    factors = jnp.repeat(weights, len(normal) // len(weights))
    both = jnp.stack([dy, dy * normal])  # one product of both: the compiler puts an all-reduce behind each
    here = sums(jnp.ones(both.shape[:2], dy.dtype), both, W)
    of_mean, of_scale = total(here, axis_name) / count
    dx = along(scale, W) * (dy - factors[:, None] * (along(of_mean, W) + normal * along(of_scale, W)))
    return dx.reshape(gradients[0].shape), None, None, None if bias is None else here[0], None


normalise.defvjp(forward, backward)
