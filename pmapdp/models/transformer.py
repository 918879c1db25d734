"""A small transformer that classifies texts: two blocks of attention and MLP over 128 tokens, 599,682 parameters.

The blocks are those of Vaswani et al., "Attention is all you need", NeurIPS 2017, with the norm in front of each part
(Xiong et al., "On layer normalization in the transformer architecture", ICML 2020).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

from pmapdp.data.tokens import LENGTH, PADDING, VOCABULARY
from pmapdp.models.layers import EVALUATION, Context, Dropout, named_linear, with_axis_names

LAYERS, EMBED, HEADS, HIDDEN, CLASSES = 2, 64, 4, 128, 2

WEIGHTS, ZEROS, ONES = nnx.initializers.lecun_normal(), nnx.initializers.zeros_init(), nnx.initializers.ones_init()


def attend(query: jax.Array, key: jax.Array, value: jax.Array, *, mask: jax.Array, **_: Any) -> jax.Array:
    """Attention of h heads: `[b, L, h, d]` each to `[b, L, h, d]`; no token looks where `mask` `[b, 1, 1, L]` is False.

    `jax.nn.dot_product_attention`, which Flax takes by itself, computes the softmax in float32, also of float64.
    """
    scores = jnp.einsum("bqhd,bkhd->bhqk", query / math.sqrt(query.shape[-1]), key)
    scores = scores.astype(jnp.promote_types(scores.dtype, jnp.float32))
    weights = jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min))
    return jnp.einsum("bhqk,bkhd->bqhd", weights.astype(value.dtype), value)


class Block(nnx.Module):
    """Attention, then an MLP; each adds what it finds to `[b, L, E]`."""

    def __init__(self, **options: Any):
        norm = {"scale_init": with_axis_names(ONES, "embed"), "bias_init": with_axis_names(ZEROS, "embed"), **options}
        self.attention_norm = nnx.LayerNorm(EMBED, **norm)
        self.attention = nnx.MultiHeadAttention(
            HEADS,
            EMBED,
            kernel_init=with_axis_names(WEIGHTS, "embed", "heads", "head"),
            bias_init=with_axis_names(ZEROS, "heads", "head"),
            out_kernel_init=with_axis_names(WEIGHTS, "heads", "head", "embed"),
            out_bias_init=with_axis_names(ZEROS, "embed"),
            attention_fn=attend,
            decode=False,
            keep_rngs=False,
            **options,
        )
        self.mlp_norm = nnx.LayerNorm(EMBED, **norm)
        self.hidden = nnx.Linear(EMBED, HIDDEN, **named_linear(WEIGHTS, "embed", "hidden"), **options)
        self.output = nnx.Linear(HIDDEN, EMBED, **named_linear(WEIGHTS, "hidden", "embed"), **options)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """`[b, L, E]` to the same; `mask` `[b, 1, 1, L]` says which tokens are there to be looked at."""
        x += self.attention(self.attention_norm(x), mask=mask)
        return x + self.output(nnx.gelu(self.hidden(self.mlp_norm(x))))


class Transformer(nnx.Module):
    """`[b, 128]` int32 token ids, 0 for padding, to `[b, 2]` logits."""

    featurizer = "tokens"  # turns texts into its inputs

    def __init__(self, *, rngs: nnx.Rngs, dtype: DTypeLike = jnp.float32, param_dtype: DTypeLike = jnp.float32):
        options: dict[str, Any] = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        small = nnx.initializers.normal(0.02)
        self.tokens = nnx.Embed(
            VOCABULARY, EMBED, embedding_init=with_axis_names(small, "vocabulary", "embed"), **options
        )
        self.positions = nnx.Embed(LENGTH, EMBED, embedding_init=with_axis_names(small, "position", "embed"), **options)
        self.word_dropout = Dropout(0.3, layer=0)
        self.blocks = nnx.List([Block(**options) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(
            EMBED, scale_init=with_axis_names(ONES, "embed"), bias_init=with_axis_names(ZEROS, "embed"), **options
        )
        self.dropout = Dropout(0.5, layer=1)
        self.logits = nnx.Linear(EMBED, CLASSES, **named_linear(WEIGHTS, "embed", "classes"), **options)

    def __call__(self, ids: jax.Array, context: Context = EVALUATION) -> jax.Array:
        """Forward pass; in training `context` needs the examples' keys."""
        known = ids != PADDING  # [b, L]
        x = self.tokens(ids) + self.positions(jnp.arange(ids.shape[1]))  # [b, L, E]
        x *= self.word_dropout(jnp.ones((*ids.shape, 1), x.dtype), context)  # a word goes or stays as a whole
        for block in self.blocks:
            x = block(x, mask=known[:, None, None])
        x = self.norm(x)
        counts = jnp.maximum(known.sum(1, keepdims=True), 1)  # an empty text has the mean 0
        x = jnp.where(known[..., None], x, 0).sum(1) / counts.astype(x.dtype)  # [b, E]
        return self.logits(self.dropout(x, context))
