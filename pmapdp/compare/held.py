"""What the devices hold: shape, sharding and bytes of arrays that a program ran with, read from the arrays."""

from typing import Any

import jax
import numpy as np

from pmapdp.verify.trees import named


def held(tree: Any) -> dict[str, Any]:
    """How many arrays a tree has, their bytes on the device that holds most, and the largest of them."""
    leaves = {name: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf) for name, leaf in named(tree).items()}
    largest = max(leaves, key=lambda name: np.size(leaves[name]))
    on_devices: dict[Any, int] = {}
    for leaf in leaves.values():
        for device, data in shards(leaf):
            on_devices[device] = on_devices.get(device, 0) + data.nbytes
    return {"arrays": len(leaves), "bytes": max(on_devices.values()), "largest": about(largest, leaves[largest])}


def about(name: str, leaf: Any) -> dict[str, Any]:
    """One array: its shape, its sharding, and which part of it each device holds.

    `parts` has a row for each device: its number among those that hold the array, and from where to where along the
    axis that is split, as fractions; 0 to 1 where all of it is there.
    """
    sharding = getattr(leaf, "sharding", None)
    if sharding is None:
        placed = "on the host"
    else:
        placed = f"P({', '.join(map(repr, sharding.spec))})" if hasattr(sharding, "spec") else "on one device"
    return {
        "name": name,
        "shape": list(np.shape(leaf)),
        "dtype": str(leaf.dtype),
        "sharding": placed,
        "on_device": list(np.shape(shards(leaf)[0][1])),
        "parts": [] if sharding is None else [extent(shard.index, leaf.shape) for shard in leaf.addressable_shards],
    }


def shards(leaf: Any) -> list[tuple[Any, Any]]:
    """Every device that holds a part of an array, and the part; None and all of it on the host."""
    if not isinstance(leaf, jax.Array):
        return [(None, leaf)]
    return [(shard.device, shard.data) for shard in leaf.addressable_shards]


def extent(index: tuple[slice, ...], shape: tuple[int, ...]) -> list[float]:
    """Where a shard starts and ends along the axis that is split, as fractions."""
    for along, size in zip(index, shape, strict=True):
        start, stop, _ = along.indices(size)
        if stop - start < size:
            return [start / size, stop / size]
    return [0.0, 1.0]


def memory(plan: Any) -> dict[str, int]:
    """Bytes on one device by the compiler's plan: what goes in, what comes out beside donated memory, and the rest."""
    new = plan.output_size_in_bytes - plan.alias_size_in_bytes
    sizes = {"arguments": plan.argument_size_in_bytes, "results": new, "temporary": plan.temp_size_in_bytes}
    return sizes | {"peak": sum(sizes.values())}
