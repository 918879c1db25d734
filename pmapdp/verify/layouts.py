"""Run a step on N devices: a layout places its arguments, and a trial calls it and reads what every device holds.

There are three ready layouts, and you can give functions of your own. Everything starts from fresh host arrays, which
no donation reaches.
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

from pmapdp.errors import shown
from pmapdp.verify import trees
from pmapdp.verify.reference import Reference, Update, split_result, step_arguments
from pmapdp.verify.report import ArgumentsError, CheckError
from pmapdp.verify.trees import Leaves, few

Devices = Sequence[jax.Device]
LIBRARIES = ("site-packages", "dist-packages", "<frozen", os.path.dirname(__file__))


def replicate(tree: Any, devices: Devices, *axes: str | None) -> Any:
    """Give every device the same, without a device axis; or split arrays along one of their axes, named `data`."""
    return jax.device_put(tree, NamedSharding(Mesh(np.array(devices), ("data",)), PartitionSpec(*axes)))


def split(tree: Any, devices: Devices, axis: int = 0) -> Any:
    """Split leaves `[B, ...]` or `[N, ...]` over N devices along an axis; B must be a multiple of N."""
    N = len(devices)
    if odd := [np.shape(leaf)[axis] for leaf in jax.tree.leaves(tree) if np.shape(leaf)[axis] % N]:
        raise CheckError(f"{odd[0]} examples do not divide over {N} devices; a Layout of your own can pad them")
    return replicate(tree, devices, *[None] * axis, "data")


def split_rows(batch: Any, devices: Devices, axis: int = 0) -> Any:
    """Split leaves `[B, ...]` as `[N, b, ...]`, a row for each device."""

    def cut(x: Any) -> jax.Array:
        return jnp.moveaxis(x.reshape(*x.shape[:axis], len(devices), -1, *x.shape[axis + 1 :]), axis, 0)

    return split(jax.tree.map(cut, split(batch, devices, axis)), devices)


def stack(tree: Any, devices: Devices) -> Any:
    """Make N copies in leaves `[N, ...]`, as `flax.jax_utils.replicate` does."""
    return split(jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * len(devices)), tree), devices)


class Layout(NamedTuple):
    """Functions that place a step's arguments: from host arrays, as one device has them, to the devices."""

    place_state: Callable[[Any, Devices], Any]  # without the leaves that `per_device` names
    place_batch: Callable[..., Any]  # from `[B, ...]`
    # The state back to arrays as one device has them. None: each leaf has the shape that it has there, or a leading
    # device axis `[N, ...]`. Leaves that it returns as they are on the devices are compared on each of them.
    fetch: Callable[[Any], Any] | None = None
    place_key: Callable[[Any, Devices], Any] = replicate
    place_own: Callable[[Any, Devices], Any] = split  # leaves `[N, ...]` that `per_device` names


LAYOUTS = {
    "stacked": Layout(stack, split_rows, place_key=stack),  # pmap: a device axis on all arguments
    "replicated": Layout(replicate, split_rows),  # pmap(in_axes=(None, 0, None))
    "sharded": Layout(replicate, split),  # jit and shard_map
}


def choose_layout(layout: Any, batch_axis: int) -> Layout:
    """Return the layout that was named or given; of a sharding of the batch, the one with all else replicated."""
    if isinstance(layout, Layout):
        return layout
    if isinstance(layout, NamedSharding):

        def put(*axes: Any) -> Callable[[Any, Devices], Any]:
            return lambda tree, _: jax.device_put(tree, NamedSharding(layout.mesh, PartitionSpec(*axes)))

        return Layout(put(), put(*layout.spec), place_key=put(), place_own=put(*layout.spec[:1]))
    if not isinstance(layout, str) or layout not in LAYOUTS:
        choices = f"choose from {', '.join(LAYOUTS)}, or give the NamedSharding of the batch"
        raise ArgumentsError(f"unknown layout {shown(layout)}: {choices}")
    found = LAYOUTS[layout]
    return found._replace(place_batch=partial(found.place_batch, axis=batch_axis))


class Trial(NamedTuple):
    """A step on some devices, and its reference on one."""

    step: Callable  # as the user wrote it
    reference: Reference
    layout: Layout  # how `step` wants its arguments
    devices: Sequence[jax.Device]  # N of them

    def place(self, update: Update) -> tuple[Any, ...]:
        """Put state, batch and key on the devices, by the layout; their memory is nobody else's."""
        state, batch, *key = trees.to_host(update.arguments)
        own, layout, devices, N = self.reference.is_own, self.layout, self.devices, len(self.devices)
        rows = trees.map_with_names(lambda path, leaf: leaf if own(path) else None, state)
        if wrong := [np.shape(leaf) for leaf in jax.tree.leaves(rows) if np.shape(leaf)[:1] != (N,)]:
            raise CheckError(f"a leaf that per_device names is {list(wrong[0])}, which are not {N} rows")
        state = layout.place_state(trees.map_with_names(lambda path, x: None if own(path) else x, state), devices)
        rows = layout.place_own(rows, devices)
        state = jax.tree.map(lambda a, b: b if a is None else a, state, rows, is_leaf=lambda x: x is None)
        batch = None if batch is None else layout.place_batch(batch, devices)
        key = [(layout.place_own if own("key") else layout.place_key)(each, devices) for each in key]
        return jax.block_until_ready((state, batch, *key))

    def call(self, *placed: Any) -> dict[str, Any]:
        """Return the "state" and the "metrics" that the step returns for placed arguments, computed."""
        returned = jax.block_until_ready(self.step(*step_arguments(*placed)))
        return split_result(returned, self.reference.form, "the step")

    def run(self, update: Update) -> dict[str, list[np.ndarray]]:
        """Make an update from the reference's state."""
        return self.read(self.call(*self.place(update)), update.values)

    def read(self, returned: dict[str, Any], values: Leaves) -> dict[str, list[np.ndarray]]:
        """Return the devices' copies of each leaf. Names and shapes must be as in the reference's `values`."""
        if self.layout.fetch is not None:
            returned = returned | {"state": self.layout.fetch(returned["state"])}
        got = self.reference.leaves(returned)
        if odd := sorted(set(got) ^ set(values)):
            who = "step" if odd[0] in got else "reference"
            raise CheckError(f"only the {who} returns {few(odd)}: return it from both, or from neither", "FAILED")
        copies = {name: trees.copies(leaf, values[name].shape, len(self.devices)) for name, leaf in got.items()}
        for name in (name for name, found in copies.items() if not found):
            shapes = f"{list(np.shape(got[name]))} in the step and {list(values[name].shape)} in the reference"
            cure = "return the same shape, or on N devices also [N, ...] (or give a Layout with your own fetch)"
            raise CheckError(f"{name} is {shapes}: {cure}", "FAILED")
        return copies


def blame(error: BaseException) -> str:
    """Return what a check found, or an error's line in your program: `it raises an error, a.py:12 in f: TypeError: x`."""
    if isinstance(error, CheckError):
        return str(error)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(library in frame.filename for library in LIBRARIES)]
    where = f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: " if own else ""
    return f"it raises an error, {where}{type(error).__name__}: {str(error).strip()}"
