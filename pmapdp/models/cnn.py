"""The convolutional network of the MirroredStrategy tutorial: 347,146 parameters. Lesson 03 builds one like it."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.models import axes


class CNN(nnx.Module):
    """`[b, 28, 28, 1]` uint8 images to `[b, 10]` logits; Keras's initialiser, Glorot uniform."""

    def __init__(
        self,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
    ):
        self.dtype = dtype
        glorot = nnx.initializers.glorot_uniform()
        options: dict[str, Any] = {
            "kernel_init": glorot,
            "dtype": dtype,
            "param_dtype": param_dtype,
            "rngs": rngs,
        }
        self.conv = nnx.Conv(1, 32, (3, 3), padding="VALID", **options)
        self.hidden = nnx.Linear(
            13 * 13 * 32, 64, **axes("features", "hidden"), **options
        )
        self.logits = nnx.Linear(64, 10, **axes("hidden", "classes"), **options)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the logits."""
        x = images.astype(self.dtype) / 255
        x = self.conv(x)  # [b, 26, 26, 32]
        x = nnx.relu(
            max_pool(x)
        )  # [b, 13, 13, 32]; the same as pooling after the ReLU, on a quarter of the pixels
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.logits(x)


def max_pool(x: jax.Array) -> jax.Array:
    """Pool 2x2 windows of `[b, H, W, C]` by their maximum, as `nnx.max_pool(x, (2, 2), (2, 2))` does.

    XLA's gradient of `nnx.max_pool` takes more than half of a training step on a CPU.
    This one compares the four pixels of each window, so its gradient only selects. In
    both, the first of equal pixels gets the whole gradient.
    """
    H, W = (
        x.shape[1] // 2 * 2,
        x.shape[2] // 2 * 2,
    )  # an odd last row or column belongs to no window
    top, bottom = ([x[:, i:H:2, j:W:2] for j in (0, 1)] for i in (0, 1))
    return larger(larger(*top), larger(*bottom))


def larger(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return the elementwise maximum, without the time that `jnp.maximum` takes to share gradients of equal numbers."""
    return jnp.where((y > x) | jnp.isnan(y), y, x)
