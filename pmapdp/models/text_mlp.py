"""The network of TensorFlow's DTensor tutorial: 1200-48-2 with batch norm without variables, 57,746 parameters."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.data.tfidf import FEATURES
from pmapdp.models.batch_norm import BatchNorm
from pmapdp.models.layers import EVALUATION, Context, named_linear

HIDDEN, CLASSES = 48, 2


class TextMLP(nnx.Module):
    """`[b, 1200]` float32 tf-idf weights to `[b, 2]` logits; Keras's initialiser, Glorot uniform.

    The batch norm has no trainable variables. In training it takes the moments of the global batch, as the tutorial
    does. The tutorial has no others, so that there an answer depends on what else is in the batch; here evaluation
    takes the running moments of training, and an example has one answer, alone and in any batch.
    """

    featurizer = "tfidf"  # turns texts into its inputs
    input_axes = ("batch", "features")

    def __init__(self, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32, param_dtype: DTypeLike = jnp.float32):
        self.dtype = dtype
        glorot = nnx.initializers.glorot_uniform()
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.hidden = nnx.Linear(FEATURES, HIDDEN, **named_linear(glorot, "features", "hidden"), **options)
        self.norm = BatchNorm(HIDDEN, epsilon=1e-5, use_bias=False, param_dtype=param_dtype)
        self.logits = nnx.Linear(HIDDEN, CLASSES, **named_linear(glorot, "hidden", "classes"), **options)

    def __call__(self, weights: jax.Array, context: Context = EVALUATION) -> jax.Array:
        """Forward pass; in training the running moments move."""
        x = nnx.relu(self.hidden(weights.astype(self.dtype)))
        return self.logits(self.norm(x, context))
