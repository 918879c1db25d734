"""A small transformer that classifies texts: two blocks of attention and MLP over 128 tokens, 599,682 parameters.

The blocks are from Vaswani et al., "Attention is all you need", NeurIPS 2017, with the
norm in front of each part (Xiong et al., "On layer normalization in the transformer
architecture", ICML 2020).
"""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.data.tokens import LENGTH, PADDING, VOCABULARY
from pmapdp.models import axes, named

LAYERS, EMBED, HEADS, HIDDEN, CLASSES = 2, 64, 4, 128, 2
NORM: dict[str, Any] = {
    "scale_metadata": named("embed"),
    "bias_metadata": named("embed"),
}


class Block(nnx.Module):
    """Attention, then an MLP; each adds what it finds to `[b, L, E]`."""

    def __init__(self, **options: Any):
        self.attention_norm = nnx.LayerNorm(EMBED, **NORM, **options)
        names: dict[str, Any] = {
            "kernel_metadata": named("embed", "heads", "head"),
            "bias_metadata": named("heads", "head"),
            "out_kernel_metadata": named("heads", "head", "embed"),
            "out_bias_metadata": named("embed"),
        }
        self.attention = nnx.MultiHeadAttention(
            HEADS, EMBED, decode=False, **names, **options
        )
        self.mlp_norm = nnx.LayerNorm(EMBED, **NORM, **options)
        self.hidden = nnx.Linear(EMBED, HIDDEN, **axes("embed", "hidden"), **options)
        self.output = nnx.Linear(HIDDEN, EMBED, **axes("hidden", "embed"), **options)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """`[b, L, E]` to the same; `mask` `[b, 1, 1, L]` is True for the tokens that are there to be looked at."""
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
        embed: dict[str, Any] = {
            "embedding_init": nnx.initializers.normal(0.02),
            **options,
        }
        self.tokens = nnx.Embed(
            VOCABULARY, EMBED, embedding_metadata=named("vocabulary", "embed"), **embed
        )
        self.positions = nnx.Embed(
            LENGTH, EMBED, embedding_metadata=named("position", "embed"), **embed
        )
        self.word_dropout = nnx.Dropout(
            0.3, broadcast_dims=(2,), rngs=rngs
        )  # a word goes or stays as a whole
        self.blocks = nnx.List([Block(**options) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(EMBED, **NORM, **options)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.logits = nnx.Linear(EMBED, CLASSES, **axes("embed", "classes"), **options)

    def __call__(self, ids: jax.Array) -> jax.Array:
        """Forward pass."""
        known = ids != PADDING  # [b, L]
        x = self.tokens(ids) + self.positions(jnp.arange(ids.shape[1]))  # [b, L, E]
        x = self.word_dropout(x)
        for block in self.blocks:
            x = block(x, mask=known[:, None, None])
        x = self.norm(x)
        counts = jnp.maximum(
            known.sum(1, keepdims=True), 1
        )  # an empty text has the mean 0
        x = jnp.where(known[..., None], x, 0).sum(1) / counts.astype(x.dtype)  # [b, E]
        return self.logits(self.dropout(x))
