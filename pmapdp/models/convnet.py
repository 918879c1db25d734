"""The network of the Keras-on-JAX guide: batch norm and dropout, 49,210 parameters, 136 running statistics."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from pmapdp.models.batch_norm import BatchNorm
from pmapdp.models.layers import EVALUATION, Context, Dropout, named_linear, scale_pixels


def convolve_blocks(x: jax.Array, kernel: jax.Array, strides: Any, padding: Any, **options: Any) -> jax.Array:
    """`lax.conv_general_dilated` at stride 2 for even sizes: `[b, H, W, C]` by `[h, w, C, F]`, for `nnx.Conv`.

    The four pixels of each 2x2 block lie side by side as 4 C channels ("space to depth"). On blocks a 6x6 kernel at
    stride 2 is a 3x3 kernel at stride 1, whose gradients XLA computes faster on CPUs.
    """
    corners = [(i, j) for i in (0, 1) for j in (0, 1)]
    pads = lax.padtype_to_pads(x.shape[1:3], kernel.shape[:2], strides, padding)
    x = jnp.pad(x, ((0, 0), *pads, (0, 0)))
    x = jnp.concatenate([x[:, i::2, j::2] for i, j in corners], 3)  # [b, H / 2, W / 2, 4 C]
    kernel = jnp.concatenate([kernel[i::2, j::2] for i, j in corners], 2)  # [h / 2, w / 2, 4 C, F]
    return lax.conv_general_dilated(x, kernel, (1, 1), "VALID", **options)


class ConvNet(nnx.Module):
    """`[b, 28, 28, 1]` uint8 images to `[b, 10]` logits; Keras's initialiser, Glorot uniform."""

    def __init__(self, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32, param_dtype: DTypeLike = jnp.float32):
        self.dtype = dtype
        glorot = nnx.initializers.glorot_uniform()
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        # No bias, for the batch norm that follows subtracts it again. (The guide has one, without effect, in large_k.)
        # Its gradient would be rounding, which differs between numbers of devices, and which Adam would amplify.
        convolution: dict[str, Any] = options | {"kernel_init": glorot, "use_bias": False}
        by_two: dict[str, Any] = {"strides": 2, "conv_general_dilated": convolve_blocks}
        self.conv1 = nnx.Conv(1, 12, (3, 3), padding="SAME", **convolution)
        self.norm1 = BatchNorm(12, param_dtype=param_dtype)
        self.conv2 = nnx.Conv(12, 24, (6, 6), padding="VALID", **convolution | by_two)
        self.norm2 = BatchNorm(24, param_dtype=param_dtype)
        self.large_k = nnx.Conv(24, 32, (6, 6), padding="SAME", **convolution | by_two)
        self.norm3 = BatchNorm(32, param_dtype=param_dtype)
        self.hidden = nnx.Linear(32, 256, **named_linear(glorot, "features", "hidden"), **options)
        self.dropout = Dropout(0.5)
        self.logits = nnx.Linear(256, 10, **named_linear(glorot, "hidden", "classes"), **options)

    def __call__(self, images: jax.Array, context: Context = EVALUATION) -> jax.Array:
        """Forward pass; in training `context` needs the examples' keys."""
        x = scale_pixels(images, self.dtype)
        x = nnx.relu(self.norm1(self.conv1(x), context))  # [b, 28, 28, 12]
        x = nnx.relu(self.norm2(self.conv2(x), context))  # [b, 12, 12, 24]
        x = nnx.relu(self.norm3(self.large_k(x), context))  # [b, 6, 6, 32]
        x = x.mean((1, 2))
        x = self.dropout(nnx.relu(self.hidden(x)), context)
        return self.logits(x)
