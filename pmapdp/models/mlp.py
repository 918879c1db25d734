"""Two multi-layer perceptrons, one of images and one of texts.

The one of images is from the blog "JAX for PyTorch users".
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.data.tfidf import FEATURES
from pmapdp.models import axes


class MLP(nnx.Module):
    """`[b, 28, 28, 1]` uint8 images to `[b, 10]` logits, with 669,706 parameters."""

    # The features are an image's rows, so devices that split rows split features.
    input_axes = ("batch", "features")

    def __init__(
        self,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
    ):
        self.dtype = dtype
        options: dict[str, Any] = {
            "kernel_init": nnx.initializers.normal(1e-2),  # as in the blog
            "dtype": dtype,
            "param_dtype": param_dtype,
            "rngs": rngs,
        }
        # Columns of hidden1 and rows of hidden2 have one name. A layout that splits
        # them needs no communication in between, and one all-reduce afterwards.
        self.hidden1 = nnx.Linear(784, 512, **axes("features", "hidden"), **options)
        self.hidden2 = nnx.Linear(512, 512, **axes("hidden", "embed"), **options)
        self.logits = nnx.Linear(512, 10, **axes("embed", "classes"), **options)

    def __call__(self, images: jax.Array) -> jax.Array:
        """Return the logits."""
        x = images.reshape(images.shape[0], -1).astype(self.dtype) / 255
        x = nnx.relu(self.hidden1(x))
        x = nnx.relu(self.hidden2(x))
        return self.logits(x)


class TextMLP(nnx.Module):
    """`[b, 1200]` float32 tf-idf weights to `[b, 2]` logits, with 57,746 parameters.

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
        options = types | {"kernel_init": nnx.initializers.glorot_uniform()}
        self.hidden = nnx.Linear(FEATURES, 48, **axes("features", "hidden"), **options)
        norm = types | {"use_bias": False, "use_scale": False}
        self.norm = nnx.BatchNorm(48, momentum=0.9, **norm)
        self.logits = nnx.Linear(48, 2, **axes("hidden", "classes"), **options)

    def __call__(self, weights: jax.Array) -> jax.Array:
        """Return the logits."""
        x = nnx.relu(self.hidden(weights.astype(self.dtype)))
        return self.logits(self.norm(x))
