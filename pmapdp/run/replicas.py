"""Compare the devices' copies of the state, because a bit that flips in a device's memory raises no error.

Each device makes a checksum of its copy of every array, and only the checksums, a few bytes, are gathered. An array
that is split over some devices and replicated over others is compared between its replicas.
"""

import functools
from collections import defaultdict
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from pmapdp.distributed import make_global
from pmapdp.errors import ReplicasError
from pmapdp.state import TrainState, named_leaves


def checksum(x: jax.Array) -> jax.Array:
    """Return the sum of byte * (2 * position + 1) over the bytes of an array, modulo 2**32, as `[]` uint32.

    One bit that differs always shows, because the factor is odd. An array that is split stays where it is.
    """
    if jnp.iscomplexobj(x):
        x = jnp.stack([x.real, x.imag])
    x = x.astype(jnp.uint8) if x.dtype == bool else jax.lax.bitcast_convert_type(x, jnp.uint8)
    position = jnp.zeros(x.shape, jnp.uint32)
    for axis, length in enumerate(x.shape):
        position = position * length + jax.lax.broadcasted_iota(jnp.uint32, x.shape, axis)
    return (x * (2 * position + 1)).sum(dtype=jnp.uint32)


@jax.jit
def checksums(state: TrainState) -> jax.Array:
    """Return the checksum of every array of a state, the same in every layout."""
    return jnp.stack([checksum(leaf) for leaf in jax.tree.leaves(state)])


@functools.partial(jax.jit, static_argnums=1)
def checksums_of_devices(arrays: tuple[jax.Array, ...], places: tuple[NamedSharding, ...]) -> jax.Array:
    """Return every device's checksums of its shards of the arrays, `[N, arrays]`."""
    mesh, specs = places[0].mesh, tuple(place.spec for place in places)
    options: dict[str, Any] = {"in_specs": (specs,), "out_specs": PartitionSpec(), "check_vma": False}
    return jax.shard_map(lambda x: jax.lax.all_gather(checksums(x), mesh.axis_names), mesh=mesh, **options)(arrays)


def require_equal_copies(step: int, state: TrainState, sharding: Any) -> None:
    """Raise a `ReplicasError` if the devices' copies of the state after update `step` differ. All processes call it.

    `sharding` says where the arrays are, one for all or a pytree like the state.
    """
    places = tuple(jax.tree.leaves(jax.tree.broadcast(sharding, state)))
    if len(places[0].device_set) == 1:
        return
    arrays = named_leaves(make_global(state, sharding))
    sums = jax.device_get(checksums_of_devices(tuple(arrays.values()), places))
    for (name, array), place, column in zip(arrays.items(), places, sums.T.tolist(), strict=True):
        shards = place.devices_indices_map(array.shape)
        devices_with: dict[tuple[str, int], list[jax.Device]] = defaultdict(list)
        for device, number in zip(place.mesh.devices.flat, column, strict=True):
            devices_with[str(shards[device]), number].append(device)
        if len(devices_with) > len({str(shard) for shard in shards.values()}):
            odd = min(devices_with.values(), key=len)[0]
            raise ReplicasError(
                f"after step {step:,} device {odd.id} (process {odd.process_index}) has another copy of {name} than "
                "the other devices, so this state was not kept: start the same command again, and without that device "
                "if it is named once more"
            )
