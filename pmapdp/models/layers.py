"""What the models need beyond Flax: layers that give one answer however the batch is split.

Lesson 07 teaches this file. Shapes: b examples on this device, H height, W width, C channels.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

EXACT = lax.Precision.HIGHEST  # accelerators would round the factors of a product

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
        count: `[]` the sum of the weights, where it is at hand: `jit` exchanges each sum that is written down.
    """

    weights: jax.Array | None = None
    keys: jax.Array | None = None
    train: bool = field(default=False, metadata={"static": True})
    axis_name: AxisName = field(default=None, metadata={"static": True})
    count: jax.Array | None = None


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


def along(values: jax.Array, W: int) -> jax.Array:
    """`[C]` for each of W pixels: `[W * C]`. A product, because XLA would repeat a copy for each line of pixels."""
    if W == 1:
        return values
    return jnp.matmul(values, jnp.tile(jnp.eye(len(values), dtype=values.dtype), W), precision=EXACT)


@jax.custom_vjp
def add_bias(x: jax.Array, bias: jax.Array) -> jax.Array:
    """`[b, W * C]` plus `[C]` for each of its W pixels. The gradient of the bias is one sum: C numbers travel."""
    return x + along(bias, x.shape[-1] // len(bias))


add_bias.defvjp(lambda x, bias: (add_bias(x, bias), bias), lambda bias, g: (g, g.reshape(-1, len(bias)).sum(0)))


def scale_pixels(images: jax.Array, dtype) -> jax.Array:
    """uint8 pixels `[b, H, W, C]` to `dtype` in [0, 1]."""
    return images.astype(dtype) / 255
