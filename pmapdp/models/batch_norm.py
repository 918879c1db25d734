"""Batch normalisation over the global batch, however it is split. Lesson 07 teaches this file.

Ioffe and Szegedy, "Batch normalization", ICML 2015. Shapes: b examples on this device, C channels.
"""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from pmapdp.models.layers import Context


class BatchNorm(nnx.Module):
    """Without a scale, for layers that a ReLU and a linear layer follow; momentum, epsilon and variance as in Keras.

    Flax's own layer averages the devices' means, which is wrong as soon as devices hold different numbers of valid
    examples. Here the devices average sums and counts, and divide afterwards.
    """

    def __init__(
        self,
        features: int,
        *,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        use_bias: bool = True,
        param_dtype: DTypeLike = jnp.float32,
    ):
        self.momentum, self.epsilon = momentum, epsilon
        self.bias = nnx.Param(jnp.zeros(features, param_dtype)) if use_bias else None
        self.mean = nnx.BatchStat(jnp.zeros(features, param_dtype))
        self.variance = nnx.BatchStat(jnp.ones(features, param_dtype))

    def __call__(self, x: jax.Array, context: Context) -> jax.Array:
        """`[b, ..., C]` to `[b, ..., C]`; in training also moves the running statistics."""
        # Relative to the running mean, E[x^2] - E[x]^2 keeps its digits. Moments of bfloat16 are taken in float32.
        relative = x.astype(self.mean.dtype) - self.mean[...]
        mean, variance = self.moments(relative, context) if context.train else (0, self.variance[...])
        scale = lax.rsqrt(variance + self.epsilon)
        bias = 0 if self.bias is None else self.bias[...]
        return (relative * scale + (bias - mean * scale)).astype(x.dtype)

    def moments(self, x: jax.Array, context: Context) -> tuple[jax.Array, jax.Array]:
        """Mean and variance `[C]` over the valid examples of the global batch; `x` is relative to the running mean."""
        weights = jnp.ones(len(x)) if context.weights is None else context.weights
        weights, pixels = weights.astype(x.dtype)[:, None], tuple(range(1, x.ndim - 1))
        of_examples = x.mean(pixels), jnp.square(x).mean(pixels)  # [b, C] each
        sums = (weights * jnp.stack([jnp.ones_like(of_examples[0]), *of_examples])).sum(1)  # [3, C]
        if context.axis_name is not None:
            sums = lax.pmean(sums, context.axis_name)
        count = sums[0]
        mean, squares = sums[1:] / jnp.where(count > 0, count, 1)
        variance = jnp.maximum(squares - jnp.square(mean), 0)

        # The mean of all batches seen, until these are 1 / (1 - momentum); then they are forgotten exponentially.
        step = jnp.asarray(context.step, x.dtype)  # the quotient of two int32 would be float32
        kept = jnp.where(count > 0, jnp.minimum(self.momentum, step / (step + 1)), 1)  # padding alone moves nothing
        self.mean[...] += (1 - kept) * mean
        self.variance[...] = kept * self.variance[...] + (1 - kept) * variance
        return mean, variance
