"""The layout that was asked for, fitted to a model and devices; what cannot be raises an error of one sentence.

An axis with a rule must divide, a rule must have an effect, and a mesh axis must split something. Only `shard_state`
leaves what does not divide replicated.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from pmapdp.errors import UserError, unknown
from pmapdp.sharding.layout import MeshLayout
from pmapdp.sharding.names import Axes, logical_axes
from pmapdp.sharding.notation import BATCH, DATA, NAMED, Rules, mesh_text, parse_layout, parse_mesh
from pmapdp.state import Task


def fit_layout(
    devices: Sequence[jax.Device],
    task: Task,
    inputs: tuple[int, ...],
    *,
    mesh: str | None = None,
    layout: str = DATA,
    shard_state: str = "none",
) -> MeshLayout:
    """How the arrays of `task` are placed on `devices`; a `UserError` says why they cannot be.

    Args:
        devices: as many as the mesh has places.
        task: what is trained.
        inputs: shape of one example.
        mesh: axes and their sizes, as for --mesh; None for one axis, `data`.
        layout: names and rules, as for --layout.
        shard_state: what is split over the axes of the batch as well: none, optimizer or parameters.
    """
    N = len(devices)
    sizes, works = parse_mesh(mesh) if mesh else {DATA: N}, f"try --mesh {DATA}={N} --layout {DATA}"
    if math.prod(sizes.values()) != N:
        raise UserError(f"--mesh {mesh} has {math.prod(sizes.values())} places for {N} device(s): {works}")
    params, model_state, in_model = logical_axes(task)
    arrays = {"the inputs": Axes(task.input_axes, (0, *inputs)[: len(task.input_axes)])}
    for path, axes in (*jax.tree.leaves_with_path(params), *jax.tree.leaves_with_path(model_state)):
        arrays[jax.tree_util.keystr(path, simple=True, separator="/")] = axes
    known = {BATCH, *(name for axes in arrays.values() for name in axes.names if name)}
    asked = parse_layout(layout)
    for name in sorted(asked.keys() - known - NAMED["spatial"].keys()):
        raise unknown(f"axis of the model in --layout {layout}", name, sorted(known))
    default = {BATCH: (DATA,)} if DATA in sizes else {}
    rules = {name: axes for name, axes in (default | in_model | asked).items() if name in known}
    check_mesh(layout, rules, sizes, works)
    for name, axes in arrays.items():
        check_array(layout, rules, name, axes, sizes, works)
    fitted = MeshLayout(Mesh(np.array(devices).reshape(tuple(sizes.values())), tuple(sizes)), rules, shard_state)
    shards = fitted.shards(BATCH)
    if shard_state != "none" and (shards == 1 or fitted.params(task, split=True) == fitted.params(task, split=False)):
        raise UserError(
            f"--shard-state {shard_state} can split nothing of this model over the {shards} device(s) that share the "
            "batch: try another number of devices, for example 8, or --shard-state none"
        )
    return fitted


def check_mesh(layout: str, rules: Rules, sizes: dict[str, int], works: str) -> None:
    """Refuse rules for mesh axes that do not exist, and a mesh axis that splits nothing: its devices would all do the
    same work."""
    N, used = math.prod(sizes.values()), {axis: name for name, axes in rules.items() for axis in axes}
    missing = {axis: 2 for axis in used if axis not in sizes}
    for axis in missing:
        rest, left = divmod(N, 2 ** len(missing))
        raise UserError(
            f"--layout {layout} splits {used[axis]} over {axis}, which is no axis of the mesh {mesh_text(sizes)}: "
            + (works if left else f"try --mesh {mesh_text({DATA: rest} | missing)}")
        )
    for axis, size in sizes.items():
        if size > 1 and axis not in used:
            raise UserError(
                f"the mesh axis {axis} of {mesh_text(sizes)} splits nothing under --layout {layout}, so its {size} "
                f"devices would do the same work: {works}"
            )


def check_array(layout: str, rules: Rules, array: str, axes: Axes, sizes: dict[str, int], works: str) -> None:
    """Refuse to cut an axis of an array into shards that are not equal, and two of its axes over one mesh axis, along
    which a device has a single place."""
    taken: dict[str, str | None] = {}
    for name, size in zip(axes.names, axes.shape, strict=True):
        over = rules.get(name or "", ())
        shards = math.prod(sizes[axis] for axis in over)
        if size % shards:
            raise UserError(
                f"--layout {layout} splits {name} of {array} over the mesh axis {'+'.join(over)} of "
                f"{mesh_text(sizes)}, but its size {size} does not divide by {shards}: {works}"
            )
        for axis in over:
            if axis in taken:
                raise UserError(
                    f"--layout {layout} splits both {taken[axis]} and {name} of {array} over the mesh axis {axis}, "
                    f"which can split only one of them: try {name}=none"
                )
            taken[axis] = name
