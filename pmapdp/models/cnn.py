"""The convolutional network of the MirroredStrategy tutorial: 347,146 parameters. Lesson 03 teaches such a module."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.models.layers import EVALUATION, Context, max_pool, named_linear, scale_pixels


class CNN(nnx.Module):
    """`[b, 28, 28, 1]` uint8 images to `[b, 10]` logits; Keras's initialiser, Glorot uniform."""

    def __init__(self, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32, param_dtype: DTypeLike = jnp.float32):
        self.dtype = dtype
        glorot = nnx.initializers.glorot_uniform()
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.conv = nnx.Conv(1, 32, (3, 3), padding="VALID", kernel_init=glorot, **options)
        self.hidden = nnx.Linear(13 * 13 * 32, 64, **named_linear(glorot, "features", "hidden"), **options)
        self.logits = nnx.Linear(64, 10, **named_linear(glorot, "hidden", "classes"), **options)

    def __call__(self, images: jax.Array, context: Context = EVALUATION) -> jax.Array:
        """Forward pass; `context` is not used: no layer here depends on other examples or on chance."""
        x = scale_pixels(images, self.dtype)
        x = self.conv(x)  # [b, 26, 26, 32]
        x = nnx.relu(max_pool(x))  # [b, 13, 13, 32]; the same as pooling after the ReLU, on a quarter of the pixels
        x = nnx.relu(self.hidden(x.reshape(x.shape[0], -1)))
        return self.logits(x)
