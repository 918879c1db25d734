"""What the lessons say about JAX and do not show in a cell."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec


def test_an_uncommitted_batch_is_computed_by_every_device_and_a_committed_one_is_an_error():
    """Lesson 09."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    W, x = jax.device_put(np.ones((5, 3), np.float32), replicated), np.ones((8, 5), np.float32)
    product = jax.jit(lambda W, x: (x @ W).sum(0), out_shardings=replicated)

    def sharding_inside(x):
        return product.lower(W, x).compile().input_shardings[0][1].spec

    assert sharding_inside(jax.device_put(x, split)) == PartitionSpec("data")
    assert sharding_inside(x) == sharding_inside(jnp.asarray(x)) == PartitionSpec()
    with pytest.raises(ValueError, match="incompatible devices"):
        product(W, jax.device_put(x, jax.devices()[0]))
