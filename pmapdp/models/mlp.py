"""The multi-layer perceptron 784-512-512-10: 669,706 parameters.

Three linear layers with weights drawn from 0.01 x a normal distribution, as in the blog "JAX for PyTorch users".
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.models import axes


class MLP(nnx.Module):
    """`[b, 28, 28, 1]` uint8 images to `[b, 10]` logits."""

    input_axes = ("batch", "features")  # the features are an image's rows: devices that split rows split features

    def __init__(self, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32, param_dtype: DTypeLike = jnp.float32):
        self.dtype = dtype
        small = nnx.initializers.normal(1e-2)
        options: dict[str, Any] = {"kernel_init": small, "dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.hidden1 = nnx.Linear(784, 512, **axes("features", "hidden"), **options)
        self.hidden2 = nnx.Linear(512, 512, **axes("hidden", "embed"), **options)
        self.logits = nnx.Linear(512, 10, **axes("embed", "classes"), **options)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Forward pass."""
        x = images.reshape(images.shape[0], -1).astype(self.dtype) / 255
        x = nnx.relu(self.hidden1(x))
        x = nnx.relu(self.hidden2(x))
        return self.logits(x)
