"""Place a step's arguments on N devices.

There are three ready layouts, and you can give functions of your own.
"""

import os
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.errors import unknown
from pmapdp.verify import trees
from pmapdp.verify.report import ArgumentsError, CheckError

Devices = Sequence[jax.Device]
LIBRARIES = (
    "site-packages",
    "dist-packages",
    "<frozen",
    os.path.dirname(os.__file__),
    os.path.dirname(__file__),
)


def place(tree: Any, devices: Devices, *axes: str | None) -> Any:
    """Copy arrays to every device, or split the axis that `axes` names `data`."""
    mesh = Mesh(np.array(devices), ("data",))
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*axes)))


def split(tree: Any, devices: Devices, axis: int = 0) -> Any:
    """Split leaves `[B, ...]` or `[N, ...]` over N devices along an axis."""
    trees.refuse_rest(tree, len(devices), axis)
    return place(tree, devices, *[None] * axis, "data")


def shard(batch: Any, devices: Devices, axis: int = 0) -> Any:
    """Split leaves `[B, ...]` as `[N, b, ...]`, a row for each device."""
    return split(trees.split_rows(batch, len(devices), axis), devices)


def stack(tree: Any, devices: Devices) -> Any:
    """Make N copies in leaves `[N, ...]`, as `flax.jax_utils.replicate` does."""

    def copy(x: Any) -> Any:
        # NumPy has no keys, but it's faster where there are hundreds of leaves.
        library: Any = jnp if trees.is_key(x) else np
        return library.broadcast_to(x, (len(devices), *np.shape(x)))

    return split(jax.tree.map(copy, tree), devices)


class Layout(NamedTuple):
    """Functions that place a step's arguments on the devices.

    They are given host arrays, as one device has them.

    Attributes:
        place_state: The state without the leaves that `per_device` names.
        place_batch: From `[B, ...]`.
        fetch: The state back to arrays as one device has them. None: each leaf has the
            shape that it has there, or a leading device axis `[N, ...]`. Leaves that it
            returns as they are on the devices are compared on each of them.
        place_key: The key.
        place_own: Leaves `[N, ...]` that `per_device` names.
    """

    place_state: Callable[[Any, Devices], Any]
    place_batch: Callable[..., Any]
    fetch: Callable[[Any], Any] | None = None
    place_key: Callable[[Any, Devices], Any] = place
    place_own: Callable[[Any, Devices], Any] = split


LAYOUTS = {
    # pmap: a device axis on all arguments.
    "stacked": Layout(stack, shard, place_key=stack),
    # pmap(in_axes=(None, 0, None))
    "replicated": Layout(place, shard),
    # jit and shard_map
    "sharded": Layout(place, split),
}


def choose_layout(layout: Any, batch_axis: int) -> Layout:
    """Return the layout that was named or given.

    Of a batch's sharding, that is the one in which all else is replicated.
    """
    if isinstance(layout, Layout):
        return layout
    if isinstance(layout, NamedSharding):

        def put(*axes: Any) -> Callable[[Any, Devices], Any]:
            sharding = NamedSharding(layout.mesh, PartitionSpec(*axes))
            return lambda tree, _: jax.device_put(tree, sharding)

        return Layout(
            put(), put(*layout.spec), place_key=put(), place_own=put(*layout.spec[:1])
        )
    if not isinstance(layout, str) or layout not in LAYOUTS:
        message = unknown("layout", str(layout), LAYOUTS)
        raise ArgumentsError(f"{message}, or give the NamedSharding of the batch")
    chosen = LAYOUTS[layout]
    return chosen._replace(place_batch=partial(chosen.place_batch, axis=batch_axis))


def blame(error: BaseException) -> str:
    """Return what a check found, or where in your program an error arose.

    For example `file.py:12 in loss: TypeError: x`.
    """
    if isinstance(error, CheckError):
        return str(error)
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not any(library in frame.filename for library in LIBRARIES):
            where = f"{frame.filename}:{frame.lineno} in {frame.name}: "
    return f"it raises an error, {where}{type(error).__name__}: {str(error).strip()}"
