"""The network of the Keras-on-JAX guide, with batch norm and dropout.

It has 49,210 parameters and 136 running statistics.
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.models import axes


class ConvNet(nnx.Module):
    """`[b, 28, 28, 1]` uint8 images to `[b, 10]` logits, initialised as Keras does."""

    def __init__(
        self,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
    ):
        self.dtype = dtype
        types: dict[str, Any] = {
            "dtype": dtype,
            "param_dtype": param_dtype,
            "rngs": rngs,
        }
        options = types | {"kernel_init": nnx.initializers.glorot_uniform()}
        # No bias, because the batch norm that follows subtracts it again. (The guide
        # has one in large_k, without effect.) Its gradient would be rounding, which
        # differs between numbers of devices and which Adam amplifies.
        conv = options | {"use_bias": False}
        # No scale, as in the guide: the layer after the ReLU can scale as well.
        norm = types | {"momentum": 0.9, "epsilon": 1e-3, "use_scale": False}
        self.conv1 = nnx.Conv(1, 12, (3, 3), padding="SAME", **conv)
        self.norm1 = nnx.BatchNorm(12, **norm)
        self.conv2 = nnx.Conv(12, 24, (6, 6), 2, padding="VALID", **conv)
        self.norm2 = nnx.BatchNorm(24, **norm)
        self.large_k = nnx.Conv(24, 32, (6, 6), 2, padding="SAME", **conv)
        self.norm3 = nnx.BatchNorm(32, **norm)
        self.hidden = nnx.Linear(32, 256, **axes("features", "hidden"), **options)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.logits = nnx.Linear(256, 10, **axes("hidden", "classes"), **options)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the logits."""
        x = images.astype(self.dtype) / 255
        x = nnx.relu(self.norm1(self.conv1(x)))  # [b, 28, 28, 12]
        x = nnx.relu(self.norm2(self.conv2(x)))  # [b, 12, 12, 24]
        x = nnx.relu(self.norm3(self.large_k(x)))  # [b, 6, 6, 32]
        x = nnx.relu(self.hidden(x.mean((1, 2))))
        return self.logits(self.dropout(x))
