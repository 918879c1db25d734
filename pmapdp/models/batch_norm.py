"""Batch normalisation over the global batch, however it is split. Lesson 07 teaches this file.

Ioffe and Szegedy, "Batch normalization", ICML 2015. Shapes: b examples on this device, C channels.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from pmapdp.models.layers import Context


class BatchNorm(nnx.Module):
    """Without a scale, for layers that a ReLU and a linear layer follow; momentum, epsilon and variance as in Keras.

    Flax' own layer averages the devices' means, which is wrong as soon as devices hold different numbers of valid
    examples. Here the devices average sums and counts, and divide afterwards.
    """

    def __init__(self, features: int, *, momentum=0.99, epsilon=1e-3, use_bias=True, param_dtype=jnp.float32):
        self.momentum, self.epsilon = momentum, epsilon
        self.bias = nnx.Param(jnp.zeros(features, param_dtype)) if use_bias else None
        self.mean = nnx.BatchStat(jnp.zeros(features, param_dtype))
        self.variance = nnx.BatchStat(jnp.ones(features, param_dtype))

    def __call__(self, x: jax.Array, context: Context) -> jax.Array:
        """`[b, ..., C]` to `[b, ..., C]`; in training also moves the running statistics."""
        wide = x.astype(self.mean.dtype)  # moments of bfloat16 activations are taken in float32
        mean, variance = self.moments(wide, context) if context.train else (self.mean[...], self.variance[...])
        y = (wide - mean) * lax.rsqrt(variance + self.epsilon)
        return (y if self.bias is None else y + self.bias[...]).astype(x.dtype)

    def moments(self, x: jax.Array, context: Context) -> tuple[jax.Array, jax.Array]:
        """Mean and variance `[C]` of the valid examples of the global batch."""
        weights = jnp.ones(len(x)) if context.weights is None else context.weights
        weights, pixels = weights.astype(x.dtype)[:, None], tuple(range(1, x.ndim - 1))
        # E[(x - k)^2] - (mean - k)^2 is the variance for any k; with k near the mean it keeps its digits.
        near = self.mean[...]
        count = weights.sum() * math.prod(x.shape[1:-1])
        sums = [(weights * each.sum(pixels)).sum(0) for each in (x, jnp.square(x - near))]
        if context.axis_name is not None:
            sums, count = lax.pmean((sums, count), context.axis_name)
        divisor = jnp.where(count > 0, count, 1)
        mean, squares = sums[0] / divisor, sums[1] / divisor
        variance = jnp.maximum(squares - jnp.square(mean - near), 0)

        # The mean of all batches seen, until these are 1 / (1 - momentum); then they are forgotten exponentially.
        step = jnp.asarray(context.step, x.dtype)  # the quotient of two int32 would be float32
        kept = jnp.where(count > 0, jnp.minimum(self.momentum, step / (step + 1)), 1)  # padding alone moves nothing
        self.mean[...] = kept * near + (1 - kept) * mean
        self.variance[...] = kept * self.variance[...] + (1 - kept) * variance
        return mean, variance
