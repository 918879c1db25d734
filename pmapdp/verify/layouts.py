"""Place a step's arguments on N devices.

`LAYOUTS` has three ready layouts. A layout of your own is a `Layout` of functions.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.errors import unknown_name
from pmapdp.verify import trees
from pmapdp.verify.report import ArgumentsError, CheckError

Devices = Sequence[jax.Device]


def place(tree: Any, devices: Devices, *axes: str | None) -> Any:
    """Place arrays on devices. An axis called `data` is split over them."""
    mesh = Mesh(np.array(devices), ("data",))
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*axes)))


def split(tree: Any, devices: Devices, axis: int = 0) -> Any:
    """Split leaves `[B, ...]` or `[N, ...]` over N devices along an axis."""
    trees.check_divisible(tree, len(devices), axis)
    return place(tree, devices, *[None] * axis, "data")


def shard(batch: Any, devices: Devices, axis: int = 0) -> Any:
    """Place leaves `[B, ...]` as `[N, b, ...]`, with a row for each device."""
    return split(trees.split_rows(batch, len(devices), axis), devices)


def stack(tree: Any, devices: Devices) -> Any:
    """Place N copies as leaves `[N, ...]`, as `flax.jax_utils.replicate` does."""

    def copy(leaf: Any) -> Any:
        shape = (len(devices), *np.shape(leaf))
        if trees.is_key(leaf):
            return jnp.broadcast_to(leaf, shape)
        return np.broadcast_to(leaf, shape)  # faster if there are hundreds of leaves

    return split(jax.tree.map(copy, tree), devices)


class Layout(NamedTuple):
    """A layout places a step's arguments on the devices.

    Its functions take arrays of the host, as one device has them.

    Attributes:
        place_state: A function of (state, devices) that places the state. Leaves that
            `per_device` names are None in it.
        place_batch: A function of (batch, devices) that places the batch `[B, ...]`.
        fetch: A function that turns the placed state back into arrays as one device has
            them. If it returns a leaf on the devices, each device's copy is compared.
            None: each leaf has the shape that it has on one device, or a leading device
            axis `[N, ...]`.
        place_key: A function of (key, devices) that places the key.
        place_per_device: A function of (leaves, devices) that places the leaves
            `[N, ...]` that `per_device` names.

    Example:
        def place(tree, devices, *axes):
            mesh = jax.sharding.Mesh(np.array(devices), ("data",))
            sharding = jax.sharding.NamedSharding(mesh, jax.P(*axes))
            return jax.device_put(tree, sharding)


        layout = Layout(place, lambda batch, devices: place(batch, devices, "data"))
    """

    place_state: Callable[[Any, Devices], Any]
    place_batch: Callable[..., Any]
    fetch: Callable[[Any], Any] | None = None
    place_key: Callable[[Any, Devices], Any] = place
    place_per_device: Callable[[Any, Devices], Any] = split


LAYOUTS = {
    # pmap: a device axis on all arguments.
    "stacked": Layout(stack, shard, place_key=stack),
    # pmap(in_axes=(None, 0, None))
    "replicated": Layout(place, shard),
    # jit and shard_map
    "sharded": Layout(place, split),
}


def place_arguments(
    state: Any,
    batch: Any,
    key: Any,
    layout: Layout,
    per_device: str | Sequence[str],
    devices: Devices,
) -> tuple:
    """Place a step's arguments. A batch or a key that is None is left out.

    Each device gets its own row of the leaves that `per_device` names.
    """

    def leave_out(path: str, leaf: Any) -> Any:
        if trees.matches(path, per_device):
            return None
        return leaf

    def place_rest(leaf: Any, placed: Any) -> Any:
        if placed is not None:
            return placed
        if np.shape(leaf)[:1] != (len(devices),):
            raise CheckError(
                f"a leaf that per_device names is {list(np.shape(leaf))}, which are "
                f"not {len(devices)} rows"
            )
        return layout.place_per_device(leaf, devices)

    placed = layout.place_state(trees.map_with_names(leave_out, state), devices)
    arguments = [jax.tree.map(place_rest, state, placed)]
    if batch is not None:
        arguments.append(layout.place_batch(batch, devices))
    if key is not None:
        place_key = layout.place_key
        if trees.matches("key", per_device):
            place_key = layout.place_per_device
        arguments.append(place_key(key, devices))
    return tuple(arguments)


def choose_layout(layout: Any, batch_axis: int) -> Layout:
    """Return the layout for the argument `layout` of `verify`.

    A `NamedSharding` is for the batch. State and key are copied to all devices of its
    mesh.
    """
    if isinstance(layout, Layout):
        return layout
    if isinstance(layout, NamedSharding):
        replicated = NamedSharding(layout.mesh, PartitionSpec())
        # `per_device` leaves [N, ...] are split as the examples of the batch are.
        examples = layout.spec[batch_axis : batch_axis + 1]
        rows = NamedSharding(layout.mesh, PartitionSpec(*examples))
        return Layout(
            place_state=lambda state, _: jax.device_put(state, replicated),
            place_batch=lambda batch, _: jax.device_put(batch, layout),
            place_key=lambda key, _: jax.device_put(key, replicated),
            place_per_device=lambda leaves, _: jax.device_put(leaves, rows),
        )
    if not isinstance(layout, str) or layout not in LAYOUTS:
        message = unknown_name("layout", str(layout), LAYOUTS)
        raise ArgumentsError(f"{message}, or give the NamedSharding of the batch")
    ready = LAYOUTS[layout]
    return ready._replace(place_batch=partial(ready.place_batch, axis=batch_axis))
