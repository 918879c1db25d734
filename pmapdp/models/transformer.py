"""A small transformer that classifies texts, with 599,682 parameters.

It has two blocks of attention and MLP over 128 tokens. The blocks are from Vaswani et
al., "Attention is all you need", NeurIPS 2017, with the norm in front of each part
(Xiong et al., "On layer normalization in the transformer architecture", ICML 2020).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.data.tokens import LENGTH, PADDING, VOCABULARY
from pmapdp.models import axes, axis_names

LAYERS = 2
EMBED = 64
HEADS = 4
HIDDEN = 128
CLASSES = 2


def layer_norm(**options: Any) -> nnx.LayerNorm:
    """Make a layer norm of `[b, L, E]` whose parameters have a named axis."""
    names = axis_names("embed")
    return nnx.LayerNorm(EMBED, scale_metadata=names, bias_metadata=names, **options)


class Block(nnx.Module):
    """Attention, then an MLP. Each adds its result to `[b, L, E]`."""

    def __init__(self, **options: Any):
        self.attention_norm = layer_norm(**options)
        self.attention = nnx.MultiHeadAttention(
            HEADS,
            EMBED,
            kernel_metadata=axis_names("embed", "heads", "head"),
            bias_metadata=axis_names("heads", "head"),
            out_kernel_metadata=axis_names("heads", "head", "embed"),
            out_bias_metadata=axis_names("embed"),
            decode=False,
            **options,
        )
        self.mlp_norm = layer_norm(**options)
        self.hidden = nnx.Linear(EMBED, HIDDEN, **axes("embed", "hidden"), **options)
        self.output = nnx.Linear(HIDDEN, EMBED, **axes("hidden", "embed"), **options)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """Return the new `[b, L, E]`. `mask` `[b, 1, 1, L]` is False for padding."""
        x += self.attention(self.attention_norm(x), mask=mask)
        return x + self.output(nnx.gelu(self.hidden(self.mlp_norm(x))))


class Transformer(nnx.Module):
    """`[b, 128]` int32 token ids, 0 for padding, to `[b, 2]` logits."""

    featurizer = "tokens"  # turns texts into its inputs

    def __init__(
        self,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        param_dtype: DTypeLike = jnp.float32,
    ):
        options: dict[str, Any] = {
            "dtype": dtype,
            "param_dtype": param_dtype,
            "rngs": rngs,
        }
        normal = nnx.initializers.normal(0.02)
        self.tokens = nnx.Embed(
            VOCABULARY,
            EMBED,
            embedding_init=normal,
            embedding_metadata=axis_names("vocabulary", "embed"),
            **options,
        )
        self.positions = nnx.Embed(
            LENGTH,
            EMBED,
            embedding_init=normal,
            embedding_metadata=axis_names("position", "embed"),
            **options,
        )
        # A word is dropped with all its numbers.
        self.word_dropout = nnx.Dropout(0.3, broadcast_dims=(2,), rngs=rngs)
        self.blocks = nnx.List([Block(**options) for _ in range(LAYERS)])
        self.norm = layer_norm(**options)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.logits = nnx.Linear(EMBED, CLASSES, **axes("embed", "classes"), **options)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Return the logits."""
        known = ids != PADDING  # [b, L]
        x = self.tokens(ids) + self.positions(jnp.arange(ids.shape[1]))  # [b, L, E]
        x = self.word_dropout(x)
        for block in self.blocks:
            # One mask for all heads and queries: no word attends to padding.
            x = block(x, mask=known[:, None, None])
        x = self.norm(x)
        # An empty text has the mean 0.
        counts = jnp.maximum(known.sum(1, keepdims=True), 1)
        x = jnp.where(known[..., None], x, 0).sum(1) / counts.astype(x.dtype)  # [b, E]
        return self.logits(self.dropout(x))
