"""What the models need beyond Flax: layers that give one answer however the batch is split.

Lesson 07 teaches this file. Shapes: b examples on this device, H height, W width, C channels.
"""

import math
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

AxisName = str | tuple[str, ...] | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Context:
    """What a layer must know about the batch beside its activations.

    Attributes:
        weights: `[b]`, 1 for an example and 0 for padding; None means that all count.
        keys: `[b]` random keys, one an example; needed by dropout in training.
        train: True in training, False in evaluation.
        axis_name: the mapped axis (or axes) over which the global batch is split (`pmap`, `shard_map`), or None where
            the arrays hold the global batch (`jit`, a single device).
    """

    weights: jax.Array | None = None
    keys: jax.Array | None = None
    train: bool = field(default=False, metadata={"static": True})
    axis_name: AxisName = field(default=None, metadata={"static": True})


EVALUATION = Context()


class Dropout(nnx.Module):
    """Dropout whose mask belongs to the example: the same on any number of devices.

    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15, 2014.

    Args:
        rate: the probability with which an activation is set to 0; the others are scaled by 1 / (1 - rate).
        layer: a number that differs between the dropout layers of one model, so that their masks do.
    """

    def __init__(self, rate: float, *, layer: int = 0):
        self.rate, self.layer = rate, layer

    def __call__(self, x: jax.Array, context: Context) -> jax.Array:
        """`[b, ...]` to `[b, ...]`; the identity in evaluation."""
        if not context.train or self.rate == 0:
            return x
        if context.keys is None:
            raise ValueError("dropout in training needs Context.keys, one random key an example")

        def keep_mask(key: jax.Array) -> jax.Array:
            return jax.random.bernoulli(jax.random.fold_in(key, self.layer), 1 - self.rate, x.shape[1:])

        return jnp.where(jax.vmap(keep_mask)(context.keys), x / (1 - self.rate), 0).astype(x.dtype)


class BatchNorm(nnx.Module):
    """Batch normalisation over the global batch, without its padding, under every strategy.

    Ioffe and Szegedy, "Batch normalization", ICML 2015. Momentum, epsilon and the (biased) running variance
    are those of Keras. There is no scale, as in the networks here, where a ReLU and a linear layer or a linear layer
    alone follow; and there is a bias unless `use_bias` is False.

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
            mean, variance, count = self.moments(wide, context)
            momentum = jnp.where(count > 0, self.momentum, 1).astype(wide.dtype)  # padding alone moves nothing
            self.mean[...] = momentum * self.mean[...] + (1 - momentum) * mean
            self.variance[...] = momentum * self.variance[...] + (1 - momentum) * variance
        else:
            mean, variance = self.mean[...], self.variance[...]
        y = (wide - mean) * lax.rsqrt(variance + self.epsilon)
        if self.bias is not None:
            y += self.bias[...]
        return y.astype(x.dtype)

    def moments(self, x: jax.Array, context: Context) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Mean and variance `[C]` of the valid examples of the global batch, and the number of their pixels.

        Two passes: E[x^2] - E[x]^2 would lose digits when the mean is large.
        """

        def total(value: jax.Array) -> jax.Array:
            return value if context.axis_name is None else lax.psum(value, context.axis_name)

        weights = jnp.ones(len(x), x.dtype) if context.weights is None else context.weights.astype(x.dtype)
        weights = weights.reshape(-1, *[1] * (x.ndim - 1))
        axes = tuple(range(x.ndim - 1))
        count = total(weights.sum()) * math.prod(x.shape[1:-1])
        divisor = jnp.maximum(count, 1)
        mean = total((weights * x).sum(axes)) / divisor
        variance = total((weights * jnp.square(x - mean)).sum(axes)) / divisor
        return mean, variance, count


def max_pool_2x2(x: jax.Array) -> jax.Array:
    """Maximum over windows of 2x2 pixels with stride 2, `[b, H, W, C]` to `[b, H // 2, W // 2, C]`.

    Written as the elementwise maximum of the four corners of all windows. The gradient of the usual
    `reduce_window` (select-and-scatter) takes more than half of a training step on CPU; that of a maximum is
    elementwise, and fuses with its neighbours on accelerators too.
    """
    b, H, W, C = x.shape
    h, w = H // 2, W // 2
    windows = x[:, : 2 * h, : 2 * w].reshape(b, h, 2, w, 2, C)
    rows = jnp.maximum(windows[:, :, 0], windows[:, :, 1])
    return jnp.maximum(rows[:, :, :, 0], rows[:, :, :, 1])


def scale_pixels(images: jax.Array, dtype) -> jax.Array:
    """uint8 pixels `[b, H, W, C]` to `dtype` in [0, 1]."""
    return images.astype(dtype) / 255
