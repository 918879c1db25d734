"""The convolutional network of the MirroredStrategy tutorial: 347,146 parameters."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from pmapdp.cpu.convolution import convolve_and_pool
from pmapdp.models.layers import EVALUATION, Context, add_bias, scale_pixels
from pmapdp.models.linear import linear


class CNN(nnx.Module):
    """`[b, 28, 28, 1]` uint8 images to `[b, 10]` logits; Keras' initialiser, Glorot uniform."""

    def __init__(self, *, rngs: nnx.Rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        self.dtype = dtype
        options: dict[str, Any] = {
            "dtype": dtype,
            "param_dtype": param_dtype,
            "kernel_init": nnx.initializers.glorot_uniform(),
            "rngs": rngs,
        }
        self.conv = nnx.Conv(1, 32, (3, 3), padding="VALID", **options)
        self.hidden = linear(13 * 13 * 32, 64, ("features", "hidden"), **options)
        self.logits = linear(64, 10, ("hidden", "classes"), **options)

    def __call__(self, images: jax.Array, context: Context = EVALUATION) -> jax.Array:
        """Forward pass; `context` is not used: no layer here depends on other examples or on chance."""
        x = scale_pixels(images, self.dtype)
        assert self.conv.bias is not None
        kernel, bias = (value.astype(self.dtype) for value in (self.conv.kernel[...], self.conv.bias[...]))
        # Bias and ReLU after the pooling give the same numbers, and have a quarter of the work.
        x = convolve_and_pool(x, kernel).reshape(x.shape[0], -1)
        x = nnx.relu(add_bias(x, bias))
        x = nnx.relu(self.hidden(x))
        return self.logits(x)
