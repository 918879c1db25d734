"""The convolutional network of the MirroredStrategy tutorial: 347,146 parameters.

Lesson 03 builds one like it.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.models import axes


class CNN(nnx.Module):
    """`[b, 28, 28, 1]` uint8 images to `[b, 10]` logits, initialised as Keras does."""

    def __init__(
        self,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
    ):
        self.dtype = dtype
        options: dict[str, Any] = {
            "kernel_init": nnx.initializers.glorot_uniform(),
            "dtype": dtype,
            "param_dtype": param_dtype,
            "rngs": rngs,
        }
        self.conv = nnx.Conv(1, 32, (3, 3), padding="VALID", **options)
        features = 13 * 13 * 32
        self.hidden = nnx.Linear(features, 64, **axes("features", "hidden"), **options)
        self.logits = nnx.Linear(64, 10, **axes("hidden", "classes"), **options)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the logits."""
        # Bytes until here: as floats, four times as much would be copied to the device.
        x = images.astype(self.dtype) / 255
        x = self.conv(x)  # [b, 26, 26, 32]
        # The same as pooling after the ReLU, which then has a quarter of the pixels.
        x = nnx.relu(max_pool(x))  # [b, 13, 13, 32]
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.logits(x)


def max_pool(x: jax.Array) -> jax.Array:
    """Pool 2x2 windows of `[b, H, W, C]` by their maximum.

    The result equals `nnx.max_pool(x, (2, 2), (2, 2))`. XLA's gradient of
    `nnx.max_pool` takes more than half of a training step on a CPU. This one compares
    the four pixels of each window, so its gradient only selects. In both, the first of
    equal pixels gets the whole gradient.
    """
    # An odd last row or column belongs to no window.
    H = x.shape[1] // 2 * 2
    W = x.shape[2] // 2 * 2
    top = larger(x[:, 0:H:2, 0:W:2], x[:, 0:H:2, 1:W:2])
    bottom = larger(x[:, 1:H:2, 0:W:2], x[:, 1:H:2, 1:W:2])
    return larger(top, bottom)


def larger(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the elementwise maximum. Of equal numbers, `x` gets the gradient.

    `jnp.maximum` takes time to share the gradient between equal numbers.
    """
    # NaN > x is False, so a NaN in y has to be asked for.
    return jnp.where((y > x) | jnp.isnan(y), y, x)
