"""Host arrays to devices and back, also where the devices belong to several processes. Lesson 13 teaches this file."""

from typing import Any

import jax
from jax.experimental import multihost_utils
from jax.sharding import Sharding


def place(rows: Any, sharding: Any) -> Any:
    """Split host arrays over devices.

    Args:
        rows: pytree of `[rows, ...]`: the whole arrays, or with several processes those rows, in their order, that lie
            on devices of this process.
        sharding: of the whole arrays, whose shape follows from it: one for all, or a pytree of them like `rows`.
    """
    shardings = jax.tree.map(lambda _: sharding, rows) if isinstance(sharding, Sharding) else sharding
    if jax.tree.leaves(shardings)[0].is_fully_addressable:
        return jax.device_put(rows, shardings)
    return jax.tree.map(jax.make_array_from_process_local_data, shardings, rows)


def over_all_processes(tree: Any, sharding: Any) -> Any:
    """The state as arrays of all processes. That is what it is, except after pmap, which gives every process arrays
    of its own devices alone; they are then put together, and nothing is copied.

    Args:
        tree: arrays that lie whole on every device, or are arrays of all processes already.
        sharding: over all processes, as `Steps.state_sharding`.
    """
    if not isinstance(sharding, Sharding) or sharding.is_fully_addressable:
        return tree

    def whole(x: jax.Array) -> jax.Array:
        if not x.is_fully_addressable:
            return x
        return jax.make_array_from_single_device_arrays(x.shape, sharding, [each.data for each in x.addressable_shards])

    return jax.tree.map(whole, tree)


def fetch(tree: Any) -> Any:
    """Arrays of devices to the host, each whole; all processes must call it, as it gathers what is split over them."""

    def whole(x: Any) -> Any:
        if isinstance(x, jax.Array) and not (x.is_fully_addressable or x.is_fully_replicated):
            return multihost_utils.process_allgather(x, tiled=True)
        return x

    return jax.device_get(jax.tree.map(whole, tree))
