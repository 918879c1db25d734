"""The network of the recipe `speedrun`.

It has the layers and widths of github.com/tuomaso/train_mnist_fast.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from pmapdp.layers import current_context
from pmapdp.models import axes
from pmapdp.models.cnn import max_pool


class Speedrun(nnx.Module):
    """`[b, 28, 28, 1]` uint8 images to `[b, 10]` logits."""

    pixels = 1  # the most that an image is moved in training, in each direction

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
        self.conv1 = nnx.Conv(1, 24, (5, 5), padding="VALID", **options)
        self.conv2 = nnx.Conv(24, 32, (3, 3), padding="VALID", **options)
        self.hidden = nnx.Linear(25 * 32, 256, **axes("features", "hidden"), **options)
        self.logits = nnx.Linear(256, 10, **axes("hidden", "classes"), **options)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the logits. In training every image is moved a little."""
        context = current_context()
        if context.train and self.pixels:
            images = move(images, context.next_keys(), self.pixels)
        x = images.astype(self.dtype) / 255
        x = nnx.relu(max_pool(self.conv1(x)))  # [b, 12, 12, 24]
        x = nnx.relu(max_pool(self.conv2(x)))  # [b, 5, 5, 32]
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.logits(x)


def move(images: jax.Array, keys: jax.Array, most: int) -> jax.Array:
    """Move every image by up to `most` pixels in each direction, with its own key.

    Args:
        images: `[b, H, W, C]`.
        keys: `[b]`.
        most: The most that an image is moved, in pixels.
    """
    padded = jnp.pad(images, ((0, 0), (most, most), (most, most), (0, 0)))

    def crop(image: jax.Array, key: jax.Array) -> jax.Array:
        row, column = jax.random.randint(key, (2,), 0, 2 * most + 1)
        return lax.dynamic_slice(image, (row, column, 0), images.shape[1:])

    return jax.vmap(crop)(padded, keys)
