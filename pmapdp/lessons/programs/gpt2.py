"""The twelve blocks of GPT-2 small, without biases and dropout: lesson 20 plans their memory."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

LAYERS, TOKENS, WIDTH, HEADS = 12, 1024, 768, 12
SHAPES = {
    "query_key_value": (LAYERS, WIDTH, 3, HEADS, WIDTH // HEADS),
    "mix": (LAYERS, HEADS, WIDTH // HEADS, WIDTH),
    "up": (LAYERS, WIDTH, 4 * WIDTH),
    "down": (LAYERS, 4 * WIDTH, WIDTH),
}
WEIGHTS = {name: jax.ShapeDtypeStruct(s, jnp.float32) for name, s in SHAPES.items()}


def normalize(x: jax.Array) -> jax.Array:
    """Layer norm, without a gain. It computes in float32, as Flax's does."""
    dtype = x.dtype
    x = x.astype(jnp.float32)
    x = (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)
    return x.astype(dtype)


def block(x: jax.Array, weights: dict[str, jax.Array]) -> jax.Array:
    """One block, from x `[TOKENS, WIDTH]` to the same shape. Its products are in the dtype of x."""
    w = {name: weight.astype(x.dtype) for name, weight in weights.items()}
    q, k, v = jnp.einsum("td,dphe->phte", normalize(x), w["query_key_value"])
    scores = jnp.einsum("hqe,hke->hqk", q, k) / (WIDTH // HEADS) ** 0.5
    scores = jnp.where(jnp.tri(TOKENS, dtype=bool), scores, -1e9)
    weighting = jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype)
    attended = jnp.einsum("hqk,hke->qhe", weighting, v)
    x = x + jnp.einsum("qhe,hed->qd", attended, w["mix"])
    return x + jax.nn.gelu(normalize(x) @ w["up"]) @ w["down"]


def make_loss(block: Callable[..., Any]) -> Callable[..., jax.Array]:
    """A loss of the weights and of one sequence x, with this function as the block."""

    def loss(weights, x):
        x, _ = lax.scan(lambda x, w: (block(x, w), None), x, weights)
        return jnp.square(x.astype(jnp.float32)).mean()

    return loss


def sequence(dtype: Any) -> jax.ShapeDtypeStruct:
    """The shape of one sequence."""
    return jax.ShapeDtypeStruct((TOKENS, WIDTH), dtype)


def kept_bytes(dtype: Any) -> Counter[str]:
    """The bytes that the backward pass keeps of one sequence, by dtype.

    The float32 weights, which the optimizer has anyway, aren't counted. Their copies in
    another dtype are.
    """

    def backward(weights, x):
        return jax.vjp(lambda weights: make_loss(block)(weights, x), weights)[1]

    leaves = jax.tree.leaves(jax.eval_shape(backward, WEIGHTS, sequence(dtype)))
    weights = [(weight.shape, weight.dtype) for weight in WEIGHTS.values()]
    kept: Counter[str] = Counter()
    for leaf in leaves:
        if (leaf.shape, leaf.dtype) not in weights:
            kept[str(leaf.dtype)] += leaf.size * leaf.dtype.itemsize
    return kept
