"""The network of the recipe `speedrun`, small enough to train in seconds.

Layers and widths are those of github.com/tuomaso/train_mnist_fast. docs/speed.md says how the recipe was chosen.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from pmapdp.models.layers import EVALUATION, Context, max_pool, named_linear, scale_pixels


class Speedrun(nnx.Module):
    """`[b, 28, 28, 1]` uint8 images to `[b, 10]` logits."""

    pixels = 1  # the most that an image is moved in training, in each direction
    widths = 24, 32, 256  # channels of the convolutions, hidden units

    def __init__(self, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32, param_dtype: DTypeLike = jnp.float32):
        self.dtype = dtype
        glorot = nnx.initializers.glorot_uniform()
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        first, second, hidden = self.widths
        self.conv1 = nnx.Conv(1, first, (5, 5), padding="VALID", kernel_init=glorot, **options)
        self.conv2 = nnx.Conv(first, second, (3, 3), padding="VALID", kernel_init=glorot, **options)
        self.hidden = nnx.Linear(25 * second, hidden, **named_linear(glorot, "features", "hidden"), **options)
        self.logits = nnx.Linear(hidden, 10, **named_linear(glorot, "hidden", "classes"), **options)

    def __call__(self, images: jax.Array, context: Context = EVALUATION) -> jax.Array:
        """Forward pass; in training `context` needs the examples' keys."""
        if context.train and self.pixels:
            images = moved(images, context.keys, self.pixels)
        x = scale_pixels(images, self.dtype)
        x = nnx.relu(max_pool(self.conv1(x)))  # [b, 12, 12, first]
        x = nnx.relu(max_pool(self.conv2(x)))  # [b, 5, 5, second]
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.logits(x)


def moved(images: jax.Array, keys: jax.Array | None, most: int) -> jax.Array:
    """Every image `[H, W, C]` moved by up to `most` pixels down or up and right or left, as its key says.

    The offset belongs to the example, so it is the same on any number of devices.
    """
    padded = jnp.pad(images, ((0, 0), (most, most), (most, most), (0, 0)))

    def crop(image: jax.Array, key: Any) -> jax.Array:
        row, column = jax.random.randint(key, (2,), 0, 2 * most + 1)
        return lax.dynamic_slice(image, (row, column, 0), images.shape[1:])

    return jax.vmap(crop)(padded, keys)
