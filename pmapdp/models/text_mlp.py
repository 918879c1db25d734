"""The network of TensorFlow's DTensor tutorial: 1200-48-2 with batch norm without variables, 57,746 parameters."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.data.tfidf import FEATURES
from pmapdp.models import axes

HIDDEN, CLASSES = 48, 2


class TextMLP(nnx.Module):
    """`[b, 1200]` float32 tf-idf weights to `[b, 2]` logits; Keras's initialiser, Glorot uniform.

    The batch norm has no trainable variables. The tutorial has no running moments either, so an answer depends on what
    else is in the batch there. Here evaluation takes those of training, and an example has one answer in any batch.
    """

    featurizer = "tfidf"  # turns texts into its inputs
    input_axes = ("batch", "features")

    def __init__(self, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32, param_dtype: DTypeLike = jnp.float32):
        self.dtype = dtype
        types: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        options: dict[str, Any] = {"kernel_init": nnx.initializers.glorot_uniform(), **types}
        self.hidden = nnx.Linear(FEATURES, HIDDEN, **axes("features", "hidden"), **options)
        self.norm = nnx.BatchNorm(HIDDEN, momentum=0.9, use_bias=False, use_scale=False, **types)
        self.logits = nnx.Linear(HIDDEN, CLASSES, **axes("hidden", "classes"), **options)

    def __call__(self, weights: jax.Array) -> jax.Array:
        """Forward pass."""
        x = nnx.relu(self.hidden(weights.astype(self.dtype)))
        return self.logits(self.norm(x))
