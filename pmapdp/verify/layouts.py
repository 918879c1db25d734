"""How a step wants its state and its batch: three ready layouts, or functions of the user's own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.verify.report import NotCheckedError

Devices = Sequence[jax.Device]


def sharding(devices: Devices, *axes: str | None) -> NamedSharding:
    """Over a mesh of one axis, `data`: replicated, or split along one axis of an array."""
    return NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec(*axes))


def replicate(tree: Any, devices: Devices) -> Any:
    """The same on every device, without a device axis."""
    return jax.device_put(tree, sharding(devices))


def split(tree: Any, devices: Devices, axis: int = 0) -> Any:
    """Leaves `[B, ...]` or `[N, ...]`, split over N devices along an axis, their first.

    Raises:
        NotCheckedError: B is no multiple of N.
    """
    require_multiples(tree, len(devices), axis)
    return jax.device_put(tree, sharding(devices, *[None] * axis, "data"))


def split_rows(batch: Any, devices: Devices, axis: int = 0) -> Any:
    """Leaves `[B, ...]` as `[N, b, ...]`, a row for each device; errors as of `split`."""
    N = len(devices)
    require_multiples(batch, N, axis)

    def cut(x: Any) -> Any:
        return np.moveaxis(x.reshape(*x.shape[:axis], N, -1, *x.shape[axis + 1 :]), axis, 0)

    return split(jax.tree.map(cut, batch), devices)


def require_multiples(tree: Any, N: int, axis: int) -> None:
    """A `NotCheckedError` where the examples do not divide over N devices."""
    if odd := [np.shape(leaf)[axis] for leaf in jax.tree.leaves(tree) if np.shape(leaf)[axis] % N]:
        raise NotCheckedError(f"{odd[0]} examples do not divide over {N} devices; a Layout of your own can pad them")


def stack(tree: Any, devices: Devices) -> Any:
    """N copies in leaves `[N, ...]`, as `flax.jax_utils.replicate` makes them."""
    return split(jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * len(devices)), tree), devices)


class Layout(NamedTuple):
    """How a step wants its arguments: functions from host arrays, as one device has them, to the devices."""

    place_state: Callable[[Any, Devices], Any]
    place_batch: Callable[..., Any]  # from `[B, ...]`
    # The state back to arrays as one device has them. None where each leaf has the shape that it has there, or a
    # leading device axis `[N, ...]`. Leaves that it returns as they are on the devices are compared on each of them.
    fetch: Callable[[Any], Any] | None = None
    place_key: Callable[[Any, Devices], Any] = replicate
    # Leaves `[N, ...]` that `per_device` names. None: place_state takes them with the others.
    place_own: Callable[[Any, Devices], Any] | None = None


LAYOUTS = {
    "stacked": Layout(stack, split_rows, place_key=stack, place_own=split),  # pmap: a device axis on all arguments
    "replicated": Layout(replicate, split_rows, place_own=split),  # pmap(in_axes=(None, 0, None))
    "sharded": Layout(replicate, split, place_own=split),  # jit and shard_map
}


def on_mesh(batch: NamedSharding) -> Layout:
    """State and key on every device of a mesh of the user's, and the batch by this sharding."""

    def place(tree: Any, _: Devices) -> Any:
        return jax.device_put(tree, NamedSharding(batch.mesh, PartitionSpec()))

    def along(tree: Any, _: Devices) -> Any:
        return jax.device_put(tree, NamedSharding(batch.mesh, PartitionSpec(*batch.spec[:1])))

    return Layout(place, lambda tree, _: jax.device_put(tree, batch), place_key=place, place_own=along)
