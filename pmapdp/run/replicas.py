"""The devices compare their copies of the state, because an error of a device's memory raises no error by itself.

Each device makes a checksum of its copy of every array. The checksums, a few bytes, are gathered and compared. What is
split over some devices and replicated over others is compared where it is replicated.
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


@jax.jit
def sum_of_words(state: TrainState) -> jax.Array:
    """Return the sum over the 32-bit words of all arrays of word x (2 x position + 1), modulo 2^32, `[]` uint32.

    One word that differs always shows, since its factor is odd. The devices make this sum of their shards, so the
    arrays stay where they are, and every layout gives the same number.
    """
    total, start = jnp.uint32(0), 0
    for leaf in jax.tree.leaves(state):
        total += word_sum(leaf, start)
        start += leaf.nbytes // 4
    return total


def word_sum(leaf: jax.Array, start: int = 0) -> jax.Array:
    """Return this sum for one array, whose first word is at the position `start`."""
    words = as_words(leaf)
    position = jnp.zeros(words.shape, jnp.uint32)
    for axis, length in enumerate(words.shape):
        position = position * length + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    return (words * (2 * (position + jnp.uint32(start % 2**31)) + 1)).sum(dtype=jnp.uint32)


def as_words(leaf: jax.Array) -> jax.Array:
    """Return the bits of an array as uint32: 64 bits as two words, fewer than 32 as one."""
    if jnp.iscomplexobj(leaf):
        leaf = jnp.stack([leaf.real, leaf.imag])
    bits = 8 * leaf.dtype.itemsize
    if leaf.dtype == bool or bits < 32:
        leaf = leaf.astype(jnp.uint8) if leaf.dtype == bool else jax.lax.bitcast_convert_type(leaf, f"uint{bits}")
        return leaf.astype(jnp.uint32)
    return jax.lax.bitcast_convert_type(leaf, jnp.uint32)


@functools.cache
def make_compare(mesh: Mesh, specs: tuple[PartitionSpec, ...]) -> Callable[[list[jax.Array]], jax.Array]:
    """Make the program that gathers every device's `word_sum` of its shard of each array, `[N, arrays]` uint32."""

    def sums_of_device(leaves: list[jax.Array]) -> jax.Array:
        return jnp.stack([word_sum(leaf) for leaf in leaves])[None]

    rows = PartitionSpec(mesh.axis_names)
    program = jax.shard_map(sums_of_device, mesh=mesh, in_specs=(list(specs),), out_specs=rows, check_vma=False)
    return jax.jit(program, out_shardings=NamedSharding(mesh, PartitionSpec()))


def find_difference(state: TrainState, sharding: Any) -> tuple[str, jax.Device, int] | None:
    """Compare the copies of every array that has several. All processes call it.

    Args:
        state: on the devices.
        sharding: where its arrays are, one for all or a pytree like the state.

    Returns:
        The name of the first array whose copies differ, a device whose copy is not the majority's, and the number of
        devices in the majority. None if all copies are equal.
    """
    places = jax.tree.leaves(jax.tree.broadcast(sharding, state))
    if not isinstance(places[0], NamedSharding):
        return None  # a single device
    devices = list(places[0].mesh.devices.flat)
    copied: list[tuple[str, jax.Array, Any, list[str]]] = []  # the last is which part of it each device holds
    leaves = jax.tree_util.tree_leaves_with_path(make_global(state, sharding))
    for (path, leaf), place in zip(leaves, places, strict=True):
        indices = place.devices_indices_map(leaf.shape)
        parts = [str(indices[device]) for device in devices]
        if len(set(parts)) < len(devices):
            copied.append((jax.tree_util.keystr(path, simple=True, separator="/"), leaf, place.spec, parts))
    if not copied:
        return None
    compare = make_compare(places[0].mesh, tuple(spec for _, _, spec, _ in copied))
    sums = jax.device_get(compare([leaf for _, leaf, _, _ in copied]))
    for (name, _, _, parts), column in zip(copied, sums.T.tolist(), strict=True):
        for part in dict.fromkeys(parts):
            copies = {device: column[i] for i, device in enumerate(devices) if parts[i] == part}
            (common, number), *others = Counter(copies.values()).most_common()
            if others:
                return name, next(device for device, copy in copies.items() if copy != common), number
    return None


def require_equal(step: int, state: TrainState, sharding: Any) -> None:
    """Raise a `ReplicasError` if the devices' copies of the state after update `step` differ."""
    if found := find_difference(state, sharding):
        name, odd, number = found
        raise ReplicasError(
            f"the copies of {name} differ after step {step:,}: that of device {odd.id} (process {odd.process_index}) "
            f"is not that of {number} other device(s), so this state was not kept: start the same command again, and "
            "without that device if it is named once more"
        )


def require_same_update(state: TrainState, sharding: Any) -> None:
    """Refuse a layer that writes what it computed from its own device's examples: after an update its copies differ."""
    if found := find_difference(state, sharding):
        name = found[0].removeprefix("model_state/").removeprefix("params/")
        raise UserError(
            f"after the first update {name} differs between devices, because the layer that writes it saw the examples "
            "of its own device alone: average it over the devices, lax.pmean(x, axis_name) with the axis_name of "
            "current_context() if that is not None, or use nnx.BatchNorm, which is exchanged for one that does"
        )
