"""The checksum of a state, made by the devices: every layout of the same numbers has the same."""

import jax
import jax.numpy as jnp

from pmapdp.state import TrainState


def checksum(state: TrainState) -> int:
    """`word_sum` over all arrays of the state as if they were one.

    A CRC needs all bytes in order in one place. The devices make this sum of their shards, so the arrays stay where
    they are, and every layout gives the same number.
    """
    return int(jax.device_get(sum_of_words(state)))


@jax.jit
def sum_of_words(state: TrainState) -> jax.Array:
    """`word_sum` over all arrays, `[]` uint32."""
    total, start = jnp.uint32(0), 0
    for leaf in jax.tree.leaves(state):
        total += word_sum(leaf, start)
        start += leaf.nbytes // 4
    return total


def word_sum(leaf: jax.Array, start: int = 0) -> jax.Array:
    """The sum over the 32-bit words of an array of word x (2 x position + 1), modulo 2^32, `[]` uint32.

    One word that differs always shows, since its factor is odd. `start` is the position of the first word.
    """
    words = as_words(leaf)
    position = jnp.zeros(words.shape, jnp.uint32)
    for axis, length in enumerate(words.shape):
        position = position * length + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    return (words * (2 * (position + jnp.uint32(start % 2**31)) + 1)).sum(dtype=jnp.uint32)


def as_words(leaf: jax.Array) -> jax.Array:
    """The bits of an array as uint32: those of 64 bits as two, those of fewer than 32 each as one."""
    if jnp.iscomplexobj(leaf):
        leaf = jnp.stack([leaf.real, leaf.imag])
    bits = 8 * leaf.dtype.itemsize
    if leaf.dtype == bool or bits < 32:
        leaf = leaf.astype(jnp.uint8) if leaf.dtype == bool else jax.lax.bitcast_convert_type(leaf, f"uint{bits}")
        return leaf.astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(leaf, jnp.uint32)
