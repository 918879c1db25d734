"""Place a step's arguments on N devices: there are three ready layouts, and you can give functions of your own."""

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
    """Copy arrays to every device without a device axis, or split the axis that `axes` names `data`."""
    return jax.device_put(
        tree, NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec(*axes))
    )


def split(tree: Any, devices: Devices, axis: int = 0) -> Any:
    """Split leaves `[B, ...]` or `[N, ...]` over N devices along an axis; B must be a multiple of N."""
    trees.split_rows(tree, len(devices), axis)  # refuses what doesn't divide
    return place(tree, devices, *[None] * axis, "data")


def shard(batch: Any, devices: Devices, axis: int = 0) -> Any:
    """Split leaves `[B, ...]` as `[N, b, ...]`, a row for each device."""
    return split(trees.split_rows(batch, len(devices), axis), devices)


def stack(tree: Any, devices: Devices) -> Any:
    """Make N copies in leaves `[N, ...]`, as `flax.jax_utils.replicate` does."""
    return split(
        jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * len(devices)), tree),
        devices,
    )


class Layout(NamedTuple):
    """Functions that place a step's arguments: from host arrays, as one device has them, to the devices."""

    place_state: Callable[
        [Any, Devices], Any
    ]  # without the leaves that `per_device` names
    place_batch: Callable[..., Any]  # from `[B, ...]`
    # The state back to arrays as one device has them. None: each leaf has the shape
    # that it has there, or a leading device axis `[N, ...]`. Leaves that it returns as
    # they are on the devices are compared on each of them.
    fetch: Callable[[Any], Any] | None = None
    place_key: Callable[[Any, Devices], Any] = place
    place_own: Callable[[Any, Devices], Any] = (
        split  # leaves `[N, ...]` that `per_device` names
    )


LAYOUTS = {
    "stacked": Layout(
        stack, shard, place_key=stack
    ),  # pmap: a device axis on all arguments
    "replicated": Layout(place, shard),  # pmap(in_axes=(None, 0, None))
    "sharded": Layout(place, split),  # jit and shard_map
}


def choose_layout(layout: Any, batch_axis: int) -> Layout:
    """Return the layout that was named or given; of a sharding of the batch, the one with all else replicated."""
    if isinstance(layout, Layout):
        return layout
    if isinstance(layout, NamedSharding):

        def put(*axes: Any) -> Callable[[Any, Devices], Any]:
            return lambda tree, _: jax.device_put(
                tree, NamedSharding(layout.mesh, PartitionSpec(*axes))
            )

        return Layout(
            put(), put(*layout.spec), place_key=put(), place_own=put(*layout.spec[:1])
        )
    if not isinstance(layout, str) or layout not in LAYOUTS:
        raise ArgumentsError(
            f"{unknown('layout', str(layout), LAYOUTS)}, or give the NamedSharding of the batch"
        )
    return LAYOUTS[layout]._replace(
        place_batch=partial(LAYOUTS[layout].place_batch, axis=batch_axis)
    )


def blame(error: BaseException) -> str:
    """Return what a check found, or where in your program an error arose: `file.py:12 in loss: TypeError: x`."""
    if isinstance(error, CheckError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not any(library in frame.filename for library in LIBRARIES)
    ]
    where = f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: " if own else ""
    return f"it raises an error, {where}{type(error).__name__}: {str(error).strip()}"
