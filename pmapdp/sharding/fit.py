"""The layout that a configuration asks for, fitted to its model and devices; what cannot be is refused in a sentence.

Nothing is silently left whole: an axis that does not divide, a rule without effect and a mesh axis that splits nothing
are mistakes.
"""

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pmapdp.config import Config
from pmapdp.errors import UserError, unknown
from pmapdp.sharding.layout import IndivisibleError, Layout, Names, logical_names, partition
from pmapdp.sharding.notation import BATCH, DATA, NAMED, Rules, check_places, mesh_text, parse_layout, parse_mesh
from pmapdp.state import Task, initial_state


def number_of_devices(config: Config) -> int | None:
    """How many devices a run is to have; None where it says nothing."""
    if config.devices is None and config.mesh:
        return math.prod(parse_mesh(config.mesh).values())
    return config.devices


def fit_layout(config: Config, devices: Sequence[jax.Device], task: Task, inputs: tuple[int, ...] = ()) -> Layout:
    """How the arrays of `task` lie on `devices`.

    Args:
        config: mesh, layout and what of the state is split.
        devices: as many as the mesh has places.
        task: what is trained.
        inputs: shape of one example.

    Raises:
        UserError: the mesh has not as many places as there are devices, a rule names an axis that neither mesh nor
            model has, two rules ask for the same mesh axis, a size does not divide, or a mesh axis is left without
            work.
    """
    if config.mesh:
        check_places(config.mesh, len(devices))
    sizes = parse_mesh(config.mesh) if config.mesh else {DATA: len(devices)}
    names, stat_names, rules = logical_names(task)
    asked, by_hand = parse_layout(config.layout)
    rules = rules | asked
    if DATA in sizes:
        rules.setdefault(BATCH, (DATA,))
    shapes = jax.eval_shape(lambda: initial_state(task))
    arrays = [
        *named_arrays(shapes.params, names),
        *named_arrays(shapes.batch_stats, stat_names),
        ("the inputs", task.input_axes[1:], inputs[: len(task.input_axes) - 1]),
    ]
    known = {name for _, each, _ in arrays for name in each if name} | {BATCH}
    check_names(config.layout, config.model, rules, by_hand, known, sizes)
    rules = {name: axes for name, axes in rules.items() if name in known}
    check_conflicts(config, rules, [*arrays, ("a batch", (BATCH, *task.input_axes[1:]), ())])
    check_sizes(config, rules, arrays, sizes)
    check_use(config, rules, sizes)
    mesh = Mesh(np.array(devices).reshape(tuple(sizes.values())), tuple(sizes))
    layout = Layout(mesh, rules, config.shard_state)
    check_shard_state(layout, task)
    return layout


Arrays = Iterable[tuple[str, Names, tuple[int, ...]]]


def named_arrays(shapes: Any, names: Any) -> list[tuple[str, Names, tuple[int, ...]]]:
    """Name, logical names of the axes, and shape of each array of a tree."""
    return [
        ("/".join(str(key.key) for key in path), each, leaf.shape)
        for (path, leaf), each in zip(
            jax.tree.leaves_with_path(shapes),
            jax.tree.leaves(names, is_leaf=lambda leaf: isinstance(leaf, tuple)),
            strict=True,
        )
    ]


def check_names(
    layout: str, model: str, rules: Rules, by_hand: set[str], known: set[str], sizes: dict[str, int]
) -> None:
    """Refuse rules for axes that do not exist."""
    for name in sorted(by_hand - known):
        raise unknown(f"axis of the model {model} in --layout {layout}", name, sorted(known))
    for name, axes in rules.items():
        for axis in axes:
            if axis not in sizes and (name in known or name in by_hand):
                if difflib.get_close_matches(axis, sizes, n=1):
                    raise unknown(f"axis of the mesh {mesh_text(sizes)} in --layout {layout}", axis, sizes)
                places = math.prod(sizes.values())
                works = next((f"{places // size},{axis}={size}" for size in (2, 3, 5, 7) if places % size == 0), None)
                raise UserError(
                    f"--layout {layout} splits {name} over {axis}, which is no axis of the mesh "
                    f"{mesh_text(sizes)}: try "
                    + (f"--mesh {DATA}={works}" if works else f"--layout {name}={next(iter(sizes))}")
                )


def check_conflicts(config: Config, rules: Rules, arrays: Arrays) -> None:
    """Refuse two axes of one array on one mesh axis: a device cannot hold two places along it."""
    for what, names, _ in arrays:
        taken: dict[str, str] = {}
        for name in names:
            for axis in rules.get(name or "", ()):
                if axis in taken:
                    raise UserError(
                        f"--layout {config.layout} splits both {taken[axis]} and {name} of {what} over the mesh axis "
                        f"{axis}, which can split only one of them: try {name}=none"
                    )
                taken[axis] = str(name)


def check_sizes(config: Config, rules: Rules, arrays: Arrays, sizes: dict[str, int]) -> None:
    """Refuse an axis that cannot be cut into equal parts; name sizes that can."""
    for what, names, shape in arrays:
        try:
            partition(names[: len(shape)], shape, sizes, rules)
        except IndivisibleError as error:
            name, size, axes = error.args
            parts = math.prod(sizes[axis] for axis in axes)
            raise UserError(
                f"{name} of {what} has size {size}, which does not divide by the {parts} devices along the mesh axis "
                f"{'+'.join(axes)} of {mesh_text(sizes)}: try --mesh {fitting_mesh(rules, arrays, sizes)}"
            ) from None


def fitting_mesh(rules: Rules, arrays: Arrays, sizes: dict[str, int]) -> str:
    """A mesh of as many devices that fits all arrays, as near as possible to `sizes`: places that cannot split the
    model split the batch.
    """
    places = math.prod(sizes.values())
    split = [axis for axis in sizes if axis not in rules.get(BATCH, ())]

    def fits(candidate: dict[str, int]) -> bool:
        try:
            for _, names, shape in arrays:
                partition(names[: len(shape)], shape, candidate, rules)
        except IndivisibleError:
            return False
        return True

    candidates: list[dict[str, int]] = [{}]
    for axis in split:
        candidates = [each | {axis: size} for each in candidates for size in range(sizes[axis], 0, -1)]
    for candidate in sorted(candidates, key=lambda each: -math.prod(each.values())):
        if places % math.prod(candidate.values()) == 0:
            whole = {DATA: places // math.prod(candidate.values())} | candidate
            if fits(dict.fromkeys(sizes, 1) | whole):
                return mesh_text(whole)
    return mesh_text({DATA: places})


def check_use(config: Config, rules: Rules, sizes: dict[str, int]) -> None:
    """Refuse a mesh axis that splits nothing: its devices would all do the same work."""
    used = {axis for axes in rules.values() for axis in axes}
    for axis, size in sizes.items():
        if size > 1 and axis not in used:
            layouts = [name for name, named in NAMED.items() if axis in named.values()]
            advice = f"--layout {layouts[0]}, or " if layouts else ""
            raise UserError(
                f"the mesh axis {axis} of {mesh_text(sizes)} splits nothing under --layout {config.layout}, so its "
                f"{size} devices would do the same work: try {advice}--mesh {DATA}={math.prod(sizes.values())}"
            )


def check_shard_state(layout: Layout, task: Task) -> None:
    """Refuse to split the state where nothing of it can be."""
    if layout.shard_state == "none":
        return
    if layout.batch_shards == 1:
        raise UserError(
            f"--shard-state {layout.shard_state} splits the state over the devices that share the batch, and there is "
            "only one: try --shard-state none, or --mesh with data=2"
        )
    split, whole = (layout.params(task, split=each) for each in (True, False))
    if split == whole:
        raise UserError(
            f"--shard-state {layout.shard_state} can split nothing of this model over {layout.batch_shards} "
            "devices, by which no axis of its parameters divides: try --devices 8, or --shard-state none"
        )
