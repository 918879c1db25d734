"""Checks of lesson 08's exercises: on a mesh of four devices."""

import jax
import numpy as np
from checks import require
from jax.sharding import Mesh, NamedSharding, PartitionSpec

N = 4


def mesh_of_four():
    """Four devices along the axis "data"."""
    return Mesh(np.array(jax.devices()[:N]), ("data",))


def place(answer):
    """Values unchanged, a quarter of the rows on each device."""
    mesh, random = mesh_of_four(), np.random.default_rng()
    batch = {
        "images": random.normal(size=(8, 6)).astype(np.float32),
        "labels": random.integers(0, 10, 8).astype(np.int32),
    }
    found = answer(batch, mesh)
    require(isinstance(found, dict) and found.keys() == batch.keys(), "return a dictionary with the same keys")
    for name, array in batch.items():
        placed = found[name]
        require(isinstance(placed, jax.Array), f"{name} is still on the host: use jax.device_put")
        require(placed.shape == array.shape, f"the global shape of {name} stays {array.shape}: there is no device axis")
        require(
            len(placed.sharding.device_set) == N, f"{name} lies on {len(placed.sharding.device_set)} device(s), not {N}"
        )
        parts = {shard.data.shape[0] for shard in placed.addressable_shards}
        require(
            parts == {len(array) // N},
            f"each device holds {max(parts)} rows of {name}, a quarter is wanted: PartitionSpec('data') cuts axis 0",
        )
        require(np.array_equal(placed, array), f"the values of {name} have changed")


def rows_on(answer):
    """The right shard, as NumPy."""
    mesh, random = mesh_of_four(), np.random.default_rng()
    numbers = random.normal(size=12).astype(np.float32)
    x = jax.device_put(numbers, NamedSharding(mesh, PartitionSpec("data")))
    for d in random.permutation(N):
        found = answer(x, jax.devices()[d])
        require(not isinstance(found, jax.Array), "return a NumPy array: np.asarray(...)")
        require(np.shape(found) != (12,), "this is the whole array: look at x.addressable_shards")
        require(
            np.array_equal(found, numbers[3 * d : 3 * d + 3]),
            f"device {d} holds {numbers[3 * d : 3 * d + 3]}, yours is {found}: compare shard.device with `device`",
        )


def mean_image(answer):
    """The mean over the split axis, replicated."""
    mesh, random = mesh_of_four(), np.random.default_rng()
    numbers = random.normal(size=(8, 5)).astype(np.float32)
    found = answer(jax.device_put(numbers, NamedSharding(mesh, PartitionSpec("data"))))
    require(isinstance(found, jax.Array), "return a jax.Array: the mean is to be computed on the devices")
    require(found.shape == (5,), f"the mean over axis 0 has the shape (5,), yours has {found.shape}")
    require(
        len(found.sharding.device_set) == N and found.sharding.is_fully_replicated,
        "the result must lie whole on all devices of the mesh: out_shardings=NamedSharding(mesh, PartitionSpec())",
    )
    require(np.allclose(found, numbers.mean(0), atol=1e-6), "the values are not the mean over axis 0")
