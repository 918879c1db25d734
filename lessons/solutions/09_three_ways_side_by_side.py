"""Solutions of lesson 09's exercises."""

import jax
import optax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec


def gradient(loss, w, x):
    """In shard_map: a loss, weights (any tree) and this device's `x` `[b, ...]` to the gradient of the global mean."""
    return jax.grad(lambda w: lax.pmean(loss(w, x), "data"))(w)


def as_global(batch, mesh):
    """A tree of `[N, b, ...]` to a tree of `[B, ...]`, cut over the devices of `mesh`."""
    whole = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)
    return jax.device_put(whole, NamedSharding(mesh, PartitionSpec("data")))


def length_ratio(gradients, reference):
    """Length of `gradients` over the length of `reference`, two trees of equal structure."""
    return optax.tree.norm(gradients) / optax.tree.norm(reference)
