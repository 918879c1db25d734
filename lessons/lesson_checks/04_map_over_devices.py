"""Checks of lesson 04."""

import jax
import numpy as np
from checks import require
from jax.sharding import Mesh, NamedSharding, PartitionSpec

TOLERANCE = 1e-4  # float32, sums of ten products of about 1


def dot_product(answer):
    """B pairs on N devices."""
    N = len(jax.devices())
    random = np.random.default_rng()
    for b in (1, int(random.integers(2, 6))):
        xs, ys = random.normal(size=(2, N * b, 10)).astype(np.float32)
        result = answer(xs, ys)
        require(
            result.shape == (N * b,),
            f"for {N * b} pairs the shape should be ({N * b},), and is {result.shape}: reshape the result at the end",
        )
        wrong = np.abs(np.asarray(result) - np.einsum("bd,bd->b", xs, ys)).max()
        require(wrong < TOLERANCE, f"a number is off by {wrong:.3g}: result i should be xs[i] . ys[i], in that order")
        used = len(result.sharding.device_set) if isinstance(result, jax.Array) else 0
        require(used == N, f"only {used} of {N} devices worked: map over the device axis with jax.pmap")


def dot_with_columns(answer):
    """One vector for all, one column for each device."""
    N = len(jax.devices())
    random = np.random.default_rng()
    vector = random.normal(size=10).astype(np.float32)
    matrix = random.normal(size=(10, N)).astype(np.float32)
    result = answer(vector, matrix)
    require(result.shape == (N,), f"the shape should be ({N},), one number for each device, and is {result.shape}")
    wrong = np.abs(np.asarray(result) - vector @ matrix).max()
    require(wrong < TOLERANCE, f"a number is off by {wrong:.3g}: device d should multiply vector with column d")
    used = len(result.sharding.device_set) if isinstance(result, jax.Array) else 0
    require(used == N, f"only {used} of {N} devices worked: use jax.pmap with in_axes")


def one_copy(answer):
    """One device's row without its device axis."""
    mesh = Mesh(np.array(jax.devices()), ("data",))
    random = np.random.default_rng()
    shape = tuple(int(size) for size in random.integers(2, 6, size=random.integers(1, 4)))
    values = random.normal(size=(len(mesh.devices), *shape)).astype(np.float32)
    row = answer(jax.device_put(values, NamedSharding(mesh, PartitionSpec("data"))))
    require(
        row.shape == shape,
        f"a stacked array {values.shape} should give {shape}, and gives {row.shape}: "
        "a shard keeps a device axis of size 1, which must go",
    )
    require(np.array_equal(row, values[0]), "these are not the numbers of device 0: take its shard")
    require(
        isinstance(row, jax.Array) and row.sharding.device_set == {jax.devices()[0]},
        "the row should lie on device 0 alone: stacked[0] and device_get move data; addressable_shards does not",
    )
