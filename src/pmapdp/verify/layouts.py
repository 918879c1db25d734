"""How a step wants its state and its batch: three ready layouts, or functions of the user's own."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.verify.report import NotCheckedError


def sharding(devices: Sequence[jax.Device], *axes: str) -> NamedSharding:
    """Over a mesh of one axis, `data`: replicated, or split along the first axis of an array."""
    return NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec(*axes))


def replicate(tree: Any, devices: Sequence[jax.Device]) -> Any:
    """The same on every device, without a device axis."""
    return jax.device_put(tree, sharding(devices))


def split(tree: Any, devices: Sequence[jax.Device], rows: bool = False) -> Any:
    """Leaves `[B, ...]` or `[N, ...]`, split over N devices along their first axis; with `rows` as `[N, b, ...]`.

    Raises:
        NotCheckedError: B is no multiple of N.
    """
    N = len(devices)
    if odd := [len(leaf) for leaf in jax.tree.leaves(tree) if len(leaf) % N]:
        raise NotCheckedError(f"{odd[0]} examples do not divide over {N} devices; a Layout of your own can pad them")
    if rows:
        tree = jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), tree)
    return jax.device_put(tree, sharding(devices, "data"))


def split_rows(batch: Any, devices: Sequence[jax.Device]) -> Any:
    """Leaves `[B, ...]` as `[N, b, ...]`, a row for each device; errors as of `split`."""
    return split(batch, devices, rows=True)


def stack(tree: Any, devices: Sequence[jax.Device]) -> Any:
    """N copies in leaves `[N, ...]`, as `flax.jax_utils.replicate` makes them."""
    return split(jax.tree.map(lambda x: jax.numpy.stack([jax.numpy.asarray(x)] * len(devices)), tree), devices)


class Layout(NamedTuple):
    """How a step wants its arguments: functions from host arrays, as one device has them, to the devices."""

    place_state: Callable[[Any, Sequence[jax.Device]], Any]
    place_batch: Callable[[Any, Sequence[jax.Device]], Any]  # from `[B, ...]`
    # The state back to arrays as one device has them. None where each leaf has the shape that it has there, or a
    # leading device axis `[N, ...]`. Leaves that it returns as they are on the devices are compared on each of them.
    fetch: Callable[[Any], Any] | None = None
    place_key: Callable[[Any, Sequence[jax.Device]], Any] = replicate


LAYOUTS = {
    "stacked": Layout(stack, split_rows, place_key=stack),  # pmap with a device axis on all arguments
    "replicated": Layout(replicate, split_rows),  # pmap(in_axes=(None, 0, None))
    "sharded": Layout(replicate, split),  # jit and shard_map
}


def on_mesh(batch: NamedSharding) -> Layout:
    """State and key on every device of a mesh of the user's, and the batch by this sharding."""

    def place(tree: Any, _: Sequence[jax.Device]) -> Any:
        return jax.device_put(tree, NamedSharding(batch.mesh, PartitionSpec()))

    return Layout(place, lambda tree, _: jax.device_put(tree, batch), place_key=place)
