"""The two multi-layer perceptrons: of images, from the blog "JAX for PyTorch users", and of texts."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.data.tfidf import FEATURES
from pmapdp.models import axes


class MLP(nnx.Module):
    """`[b, 28, 28, 1]` uint8 images to `[b, 10]` logits: 784-512-512-10, 669,706 parameters."""

    input_axes = (
        "batch",
        "features",
    )  # the features are an image's rows: devices that split rows split features

    def __init__(
        self,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
    ):
        self.dtype = dtype
        small = nnx.initializers.normal(1e-2)  # as in the blog
        options: dict[str, Any] = {
            "kernel_init": small,
            "dtype": dtype,
            "param_dtype": param_dtype,
            "rngs": rngs,
        }
        self.hidden1 = nnx.Linear(784, 512, **axes("features", "hidden"), **options)
        self.hidden2 = nnx.Linear(512, 512, **axes("hidden", "embed"), **options)
        self.logits = nnx.Linear(512, 10, **axes("embed", "classes"), **options)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Forward pass."""
        x = images.reshape(images.shape[0], -1).astype(self.dtype) / 255
        x = nnx.relu(self.hidden1(x))
        x = nnx.relu(self.hidden2(x))
        return self.logits(x)


class TextMLP(nnx.Module):
    """`[b, 1200]` float32 tf-idf weights to `[b, 2]` logits: 1200-48-2, 57,746 parameters, Glorot uniform.

    It's the network of TensorFlow's DTensor tutorial, whose batch norm has no trainable
    variables. The tutorial has no running moments either, so an answer depends on what
    else is in the batch there, and here it doesn't.
    """

    featurizer = "tfidf"  # turns texts into its inputs
    input_axes = ("batch", "features")

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
        options: dict[str, Any] = {
            "kernel_init": nnx.initializers.glorot_uniform(),
            **types,
        }
        self.hidden = nnx.Linear(FEATURES, 48, **axes("features", "hidden"), **options)
        self.norm = nnx.BatchNorm(
            48, momentum=0.9, use_bias=False, use_scale=False, **types
        )
        self.logits = nnx.Linear(48, 2, **axes("hidden", "classes"), **options)

    def __call__(self, weights: jax.Array) -> jax.Array:
        """Forward pass."""
        x = nnx.relu(self.hidden(weights.astype(self.dtype)))
        return self.logits(self.norm(x))
