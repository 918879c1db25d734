"""The layout that was asked for, fitted to a model and devices; what cannot be raises an error of one sentence.

An axis with a rule must divide, a rule must have an effect, and a mesh axis must split something. Only `shard_state`
leaves what does not divide replicated, and the header of a run says how many bytes these are.
"""

import difflib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from pmapdp.errors import UserError, unknown
from pmapdp.sharding.layout import Layout
from pmapdp.sharding.names import IndivisibleError, Names, logical_names, partition
from pmapdp.sharding.notation import BATCH, DATA, NAMED, Rules, check_places, mesh_text, parse_layout, parse_mesh
from pmapdp.state import Task, initial_state


class Array(NamedTuple):
    """Name, logical names of the axes, and shape of an array."""

    name: str
    axes: Names
    shape: tuple[int, ...]


def number_of_devices(devices: int | None, mesh: str | None) -> int | None:
    """How many devices a run is to have, from --devices and --mesh; None where neither is given."""
    return math.prod(parse_mesh(mesh).values()) if devices is None and mesh else devices


def fit_layout(
    devices: Sequence[jax.Device],
    task: Task,
    inputs: tuple[int, ...] = (),
    *,
    mesh: str | None = None,
    layout: str = DATA,
    shard_state: str = "none",
) -> Layout:
    """How the arrays of `task` are placed on `devices`; a `UserError` says why they cannot be.

    Args:
        devices: as many as the mesh has places.
        task: what is trained.
        inputs: shape of one example.
        mesh: axes and their sizes, as for --mesh; None for one axis, `data`.
        layout: names and rules, as for --layout.
        shard_state: what is split over the axes of the batch as well: none, optimizer or parameters.
    """
    if mesh:
        check_places(mesh, len(devices))
    sizes = parse_mesh(mesh) if mesh else {DATA: len(devices)}
    names, stat_names, in_model = logical_names(task)
    asked, by_hand = parse_layout(layout)
    default = {BATCH: (DATA,)} if DATA in sizes else {}
    shapes = jax.eval_shape(lambda: initial_state(task))
    arrays = [
        *named_arrays(shapes.params, names),
        *named_arrays(shapes.batch_stats, stat_names),
        Array("the inputs", task.input_axes[1:], inputs[: len(task.input_axes) - 1]),
    ]
    known = {name for array in arrays for name in array.axes if name} | {BATCH}
    for name in sorted(by_hand - known):
        raise unknown(f"axis of the model in --layout {layout}", name, sorted(known))
    rules = {name: axes for name, axes in (default | in_model | asked).items() if name in known}
    check_axes(layout, rules, sizes)
    check_conflicts(layout, rules, [*arrays, Array("a batch", (BATCH, *task.input_axes[1:]), ())])
    check_sizes(layout, rules, arrays, sizes)
    check_use(layout, rules, sizes)
    fitted = Layout(Mesh(np.array(devices).reshape(tuple(sizes.values())), tuple(sizes)), rules, shard_state)
    check_shard_state(fitted, task)
    return fitted


def named_arrays(shapes: Any, names: Any) -> list[Array]:
    """The arrays of a tree; `names` has the logical names of their axes in the same places."""
    found = jax.tree.map_with_path(
        lambda path, leaf, names: [Array("/".join(str(key.key) for key in path), names, leaf.shape)], shapes, names
    )
    return jax.tree.leaves(found, is_leaf=lambda node: isinstance(node, Array))


def check_axes(layout: str, rules: Rules, sizes: dict[str, int]) -> None:
    """Refuse rules for mesh axes that do not exist."""
    missing = {axis: name for name, axes in rules.items() for axis in axes if axis not in sizes}
    for axis, name in missing.items():
        if difflib.get_close_matches(axis, sizes, n=1):
            raise unknown(f"axis of the mesh {mesh_text(sizes)} in --layout {layout}", axis, sizes)
        rest, left = divmod(math.prod(sizes.values()), 2 ** len(missing))
        mesh = mesh_text({DATA: rest} | dict.fromkeys(missing, 2))
        raise UserError(
            f"--layout {layout} splits {name} over {axis}, which is no axis of the mesh {mesh_text(sizes)}: "
            f"try {f'--layout {DATA}' if left else f'--mesh {mesh}'}"
        )


def check_conflicts(layout: str, rules: Rules, arrays: list[Array]) -> None:
    """Refuse two axes of one array on one mesh axis: a device cannot hold two places along it."""
    for array in arrays:
        taken: dict[str, str] = {}
        for name in filter(None, array.axes):
            for axis in rules.get(name, ()):
                if axis in taken:
                    raise UserError(
                        f"--layout {layout} splits both {taken[axis]} and {name} of {array.name} over the mesh axis "
                        f"{axis}, which can split only one of them: try {name}=none"
                    )
                taken[axis] = name


def check_sizes(layout: str, rules: Rules, arrays: list[Array], sizes: dict[str, int]) -> None:
    """Refuse an axis that cannot be cut into equal shards."""
    for array in arrays:
        try:
            partition(array.axes[: len(array.shape)], array.shape, sizes, rules)
        except IndivisibleError as error:
            name, size, axes = error.args
            shards = math.prod(sizes[axis] for axis in axes)
            raise UserError(
                f"--layout {layout} splits {name} of {array.name} over the mesh axis {'+'.join(axes)} of "
                f"{mesh_text(sizes)}, but its size {size} does not divide by {shards}: use a number of devices along "
                f"that axis that divides {size}, or --mesh {DATA}={math.prod(sizes.values())} --layout {DATA}"
            ) from None


def check_use(layout: str, rules: Rules, sizes: dict[str, int]) -> None:
    """Refuse a mesh axis that splits nothing: its devices would all do the same work."""
    used = {axis for axes in rules.values() for axis in axes}
    for axis, size in sizes.items():
        if size > 1 and axis not in used:
            named = next((f"--layout {name}, or " for name, each in NAMED.items() if axis in each.values()), "")
            raise UserError(
                f"the mesh axis {axis} of {mesh_text(sizes)} splits nothing under --layout {layout}, so its {size} "
                f"devices would do the same work: try {named}--mesh {DATA}={math.prod(sizes.values())} --layout {DATA}"
            )


def check_shard_state(layout: Layout, task: Task) -> None:
    """Refuse to split the state where nothing of it can be split."""
    if layout.shard_state == "none":
        return
    if layout.batch_shards == 1:
        raise UserError(
            f"--shard-state {layout.shard_state} splits the state over the devices that share the batch, and there is "
            "only one: try --shard-state none, or --mesh with data=2"
        )
    if layout.params(task, split=True) == layout.params(task, split=False):
        raise UserError(
            f"--shard-state {layout.shard_state} can split nothing of this model over {layout.batch_shards} devices, "
            "by which no axis of its parameters divides: try --devices 8, or --shard-state none"
        )
