"""Compare the devices' copies of the state, because a bit that flips in a device's memory raises no error.

Each device makes a checksum of its copy of every array, and only the checksums, a few bytes, are gathered. An array
that is split over some devices and replicated over others is compared between its replicas.
"""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.distributed import make_global
from pmapdp.errors import ReplicasError, UserError
from pmapdp.state import TrainState


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


@functools.cache
def make_compare(mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Callable[[list[jax.Array]], jax.Array]:
    """Make the program that gathers every device's checksums of its shards of the arrays, `[N, arrays]`."""
    options: dict[str, Any] = {"in_specs": (list(specs),), "out_specs": PartitionSpec(mesh.axis_names)}
    program = jax.shard_map(lambda shards: checksums(shards)[None], mesh=mesh, **options, check_vma=False)
    return jax.jit(program, out_shardings=NamedSharding(mesh, PartitionSpec()))


def find_difference(state: TrainState, sharding: Any) -> tuple[str, jax.Device] | None:
    """Return the first array whose copies differ, and a device whose copy is not the majority's, or None.

    All processes call it. `sharding` says where the arrays are, one for all or a pytree like the state.
    """
    places = jax.tree.leaves(jax.tree.broadcast(sharding, state))
    if len(places[0].device_set) == 1:
        return None
    devices = list(places[0].mesh.devices.flat)
    named = jax.tree_util.tree_leaves_with_path(make_global(state, sharding))
    specs = tuple(place.spec for place in places)
    sums = jax.device_get(make_compare(places[0].mesh, specs)([leaf for _, leaf in named]))
    for (path, leaf), place, column in zip(named, places, sums.T.tolist(), strict=True):
        parts = [str(place.devices_indices_map(leaf.shape)[device]) for device in devices]
        # Of each part: how many devices have each checksum.
        common: dict[str, Counter[int]] = {part: Counter() for part in parts}
        for part, number in zip(parts, column, strict=True):
            common[part][number] += 1
        for device, part, number in zip(devices, parts, column, strict=True):
            if number != common[part].most_common(1)[0][0]:
                return jax.tree_util.keystr(path, simple=True, separator="/"), device
    return None


def require_equal(step: int, state: TrainState, sharding: Any) -> None:
    """Raise a `ReplicasError` if the devices' copies of the state after update `step` differ."""
    if found := find_difference(state, sharding):
        name, device = found
        raise ReplicasError(
            f"the copies of {name} differ after step {step:,}: that of device {device.id} (process "
            f"{device.process_index}) is not that of the other devices, so this state was not kept: start the same "
            "command again, and without that device if it is named once more"
        )


def require_same_update(state: TrainState, sharding: Any) -> None:
    """Refuse a model whose copies differ after an update: a layer writes what its own device's examples alone gave."""
    if found := find_difference(state, sharding):
        name = found[0].removeprefix("model_state/").removeprefix("params/")
        raise UserError(
            f"after the first update {name} differs between devices, because the layer that writes it saw the examples "
            "of its own device alone: average it over the devices, lax.pmean(x, axis_name) with the axis_name of "
            "current_context() if that is not None, or use nnx.BatchNorm, which is exchanged for one that does"
        )
