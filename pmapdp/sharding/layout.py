"""A layout splits axes of arrays over axes of a mesh of devices. Lessons 15 and 16 teach this file.

    --mesh data=4,model=2               mesh axes and their sizes
    --layout model                      a named layout
    --layout hidden=model,embed=none    rules: logical axis = mesh axis, or none
    --layout model,batch=data+feature   both; + splits one logical axis over several mesh axes, and a later rule wins

A model names the axes of its parameters: the kernel `[784, 512]` of a linear layer has
the axes `features` and `hidden`. A layout has rules for such names.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.errors import UserError, explain_errors, unknown
from pmapdp.state import Task, TrainState, initial_state, named_leaves

Rules = dict[str, tuple[str, ...]]

BATCH, DATA = "batch", "data"
# Splitting the outputs of one matrix and the inputs of the next over the same devices
# needs one all-reduce for the two: Shoeybi et al., "Megatron-LM", arXiv:1909.08053,
# 2019.
MODEL: Rules = {"hidden": ("model",), "heads": ("model",)}
NAMED: dict[str, Rules] = {
    "data": {},
    "model": MODEL,
    "spatial": MODEL | {"features": ("feature",)},
}
# The values of --shard-state that each strategy runs.
SHARD_STATES = {
    "jit": ("none", "optimizer", "parameters"),
    "pmap": ("none", "optimizer"),
    "shard_map": ("none", "optimizer"),
}


def parse_mesh(text: str) -> dict[str, int]:
    """Return the axes of a mesh and their sizes, in order. A `UserError` refuses what isn't like `data=4,model=2`."""
    sizes = {axis: int(size) for axis, size in re.findall(r"(\w+)=([1-9]\d*)\b", text)}
    if not sizes or mesh_text(sizes) != text.replace(" ", ""):
        raise UserError(
            f"--mesh {text!r} is not a list of different axes with their sizes: try --mesh data=4,model=2"
        )
    return sizes


def mesh_text(sizes: dict[str, int]) -> str:
    """Write a mesh as on the command line."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def number_of_devices(
    devices: int | None, mesh: str | None, processes: int = 1
) -> int | None:
    """Return the number of devices of each process, from --devices or --mesh, or None without either."""
    return devices or (
        math.prod(parse_mesh(mesh).values()) // processes if mesh else None
    )


def parse_layout(text: str) -> Rules:
    """Return the rules of a layout. A `UserError` refuses any other text."""
    rules: Rules = {}
    for part in text.replace(" ", "").split(","):
        name, equals, axes = part.partition("=")
        if part not in NAMED and not re.fullmatch(r"\w+=\w+(\+\w+)*", part):
            raise unknown("layout", part, [*NAMED, "hidden=model (a rule)"])
        rules |= (
            {name: () if axes == "none" else tuple(axes.split("+"))}
            if equals
            else NAMED[part]
        )
    return rules


def check_sharding(
    mesh: str | None, layout: str, shard_state: str, strategy: str
) -> None:
    """Refuse flags that can't work together, whatever the model."""
    if strategy != "jit" and (mesh or layout != DATA):
        given = f"--mesh {mesh}" if mesh else f"--layout {layout}"
        raise UserError(
            f"{given} needs --strategy jit, because --strategy {strategy} splits the batch alone"
        )
    if shard_state not in SHARD_STATES.get(strategy, ("none",)):
        raise UserError(
            f"--shard-state {shard_state} does not work with --strategy {strategy}: use --strategy jit"
        )


@dataclass(frozen=True)
class Axes:
    """Logical names and sizes of the axes of an array; an axis with the name None is never split."""

    names: tuple[str | None, ...]
    shape: tuple[int, ...]


def logical_axes(task: Task) -> tuple[Any, Any]:
    """Return the `Axes` of the parameters and of the model's other arrays, nested as those are."""

    def axes_of(leaf: Any) -> Axes:
        if not isinstance(leaf, nnx.Variable):  # an array that is a plain attribute
            return Axes((None,) * leaf.ndim, leaf.shape)
        shape = leaf.get_value().shape
        return Axes(
            tuple(leaf.get_metadata("out_sharding", None) or (None,) * len(shape)),
            shape,
        )

    def axes_in(arrays: Any) -> Any:
        return nnx.to_pure_dict(
            jax.tree.map(
                axes_of, arrays, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
            )
        )

    params, _, model_state = nnx.state(task.model, task.trainable, nnx.RngState, ...)
    return axes_in(params), axes_in(model_state)


@dataclass(frozen=True)
class MeshLayout:
    """The shardings of all arrays: axes of the mesh split the logical axes that have rules."""

    mesh: Mesh  # of the devices
    rules: Rules  # mesh axes by logical axis
    # Split over the batch's axes too, although their devices all need it: the
    # `optimizer` state is stage 1 of Rajbhandari et al., "ZeRO", SC 2020, and with the
    # `parameters` it's stage 3.
    shard_state: str = "none"

    batch_axes = property(
        lambda self: self.rules.get(BATCH, ())
    )  # over which the examples are split
    batch_shards = property(lambda self: self.shards(BATCH))
    splits_state = property(
        lambda self: self.shard_state != "none" or not set(self.rules) <= {BATCH}
    )
    replicated = property(lambda self: NamedSharding(self.mesh, PartitionSpec()))

    @property
    def text(self) -> str:
        """One line for a header, for example `mesh data=4,model=2: batch over data, hidden over model`."""
        rules = [
            f"{name} over {'+'.join(axes)}" for name, axes in self.rules.items() if axes
        ]
        return f"mesh {mesh_text(dict(self.mesh.shape))}: {', '.join(rules)}"

    def shards(self, name: str | None) -> int:
        """Return the number of shards of a logical axis."""
        return math.prod(
            self.mesh.shape[axis] for axis in self.rules.get(name or "", ())
        )

    def array_sharding(self, axes: Axes, *, split: bool = False) -> NamedSharding:
        """Make the sharding of an array. With `split` the batch's axes split the first axis that they divide."""
        entries = [self.rules.get(name or "", ()) for name in axes.names]
        sizes = [
            size // self.shards(name)
            for name, size in zip(axes.names, axes.shape, strict=True)
        ]
        first = next(
            (
                axis
                for axis, size in enumerate(sizes)
                if size and size % self.batch_shards == 0
            ),
            None,
        )
        if split and first is not None:
            entries[first] += self.batch_axes
        return NamedSharding(
            self.mesh, PartitionSpec(*(entry or None for entry in entries))
        )

    def batch_sharding(self, task: Task) -> Batch:
        """Make the `NamedSharding` of each array of a batch."""
        rows = NamedSharding(self.mesh, PartitionSpec(self.batch_axes or None))
        inputs = [self.rules.get(name, ()) or None for name in task.input_axes]
        return Batch(NamedSharding(self.mesh, PartitionSpec(*inputs)), rows, rows, rows)

    def params_sharding(self, task: Task, *, split: bool) -> Any:
        """Make the `NamedSharding` of each parameter; with `split` also over the batch's axes."""
        return jax.tree.map(
            lambda axes: self.array_sharding(axes, split=split), logical_axes(task)[0]
        )

    def state_sharding(self, task: Task) -> Any:
        """Make the `NamedSharding` of each array of the train state, or one for all of them.

        An array that optax keeps for a parameter is split as the parameter is, if it
        has its shape.
        """
        if not self.splits_state:
            return self.replicated
        with jax.transfer_guard(
            "allow"
        ):  # optax makes some arrays to find the parameters' places
            shapes = jax.eval_shape(lambda: initial_state(task))
            optimizer_state = optax.tree_map_params(
                task.optimizer,
                lambda leaf, sharding, p: (
                    sharding if leaf.shape == p.shape else self.replicated
                ),
                shapes.optimizer_state,
                self.params_sharding(task, split=self.shard_state != "none"),
                shapes.params,
                transform_non_params=lambda _: self.replicated,
            )
        return TrainState(
            step=self.replicated,
            params=self.params_sharding(task, split=self.shard_state == "parameters"),
            model_state=jax.tree.map(self.array_sharding, logical_axes(task)[1]),
            optimizer_state=optimizer_state,
        )

    def shards_on(self, devices: Sequence[jax.Device], task: Task) -> range:
        """Return the numbers, from 0, of the batch's shards on these devices of one process, which reads them."""
        shape = tuple(self.shards(name) for name in task.input_axes)
        places = self.batch_sharding(task).inputs.devices_indices_map(shape)
        shards = {
            tuple(part.start or 0 for part in places[device]) for device in devices
        }
        first, last = (edge(row for row, *_ in shards) for edge in (min, max))
        if len(shards) < (last + 1 - first) * math.prod(shape[1:]):
            raise UserError(
                f"--mesh {mesh_text(dict(self.mesh.shape))} splits examples between processes of {len(devices)} "
                "devices, and each reads whole examples that follow one another: name the axes of the batch first, and "
                f"make the product of the others divide {len(devices)}"
            )
        return range(first, last + 1)


def fit_layout(
    devices: Sequence[jax.Device],
    task: Task,
    inputs: tuple[int, ...],
    *,
    mesh: str | None = None,
    layout: str = DATA,
    shard_state: str = "none",
) -> MeshLayout:
    """Fit --mesh, --layout and --shard-state to a model, to `inputs` of the shape of one example, and to devices.

    An axis with a rule must divide, and a mesh axis must split something; `shard_state`
    splits what it can.
    """
    N = len(devices)
    sizes, advice = (
        parse_mesh(mesh) if mesh else {DATA: N},
        f"try --mesh {DATA}={N} --layout {DATA}",
    )
    if math.prod(sizes.values()) != N:
        raise UserError(
            f"--mesh {mesh} has {math.prod(sizes.values())} places for {N} device(s): {advice}"
        )
    arrays = {"the inputs": Axes(task.input_axes, (0, *inputs)[: len(task.input_axes)])}
    arrays |= named_leaves(*logical_axes(task))
    known = {BATCH, *(name for axes in arrays.values() for name in axes.names if name)}
    asked = parse_layout(layout)
    for name in sorted(asked.keys() - known - NAMED["spatial"].keys()):
        raise unknown(f"axis of the model in --layout {layout}", name, sorted(known))
    default = {BATCH: (DATA,)} if DATA in sizes else {}
    rules = {name: axes for name, axes in (default | asked).items() if name in known}
    check_mesh(layout, rules, sizes, advice)
    fitted = MeshLayout(
        Mesh(np.array(devices).reshape(tuple(sizes.values())), tuple(sizes)),
        rules,
        shard_state,
    )
    for name, axes in arrays.items():
        # JAX has two errors, for unequal shards and for a mesh axis that splits two
        # axes.
        with explain_errors(
            f"--layout {layout} does not fit {name} {[*axes.shape]} on {mesh_text(sizes)}",
            advice,
        ):
            fitted.array_sharding(axes).shard_shape(axes.shape)
    is_whole = fitted.params_sharding(task, split=True) == fitted.params_sharding(
        task, split=False
    )
    if shard_state != "none" and (fitted.batch_shards == 1 or is_whole):
        raise UserError(
            f"--shard-state {shard_state} can split nothing of this model over the {fitted.batch_shards} device(s) "
            "that share the batch: try another number of devices, for example 8, or --shard-state none"
        )
    return fitted


def check_mesh(layout: str, rules: Rules, sizes: dict[str, int], advice: str) -> None:
    """Refuse rules for unknown mesh axes, and a mesh axis that splits nothing: its devices would do the same work."""
    N, used = (
        math.prod(sizes.values()),
        {axis: name for name, axes in rules.items() for axis in axes},
    )
    missing = {axis: 2 for axis in used if axis not in sizes}
    for axis in missing:
        rest, left = divmod(N, 2 ** len(missing))
        raise UserError(
            f"--layout {layout} splits {used[axis]} over {axis}, which is no axis of the mesh {mesh_text(sizes)}: "
            + (advice if left else f"try --mesh {mesh_text({DATA: rest} | missing)}")
        )
    for axis, size in sizes.items():
        if size > 1 and axis not in used:
            raise UserError(
                f"the mesh axis {axis} of {mesh_text(sizes)} splits nothing under --layout {layout}, so its {size} "
                f"devices would do the same work: {advice}"
            )


def bytes_on_a_device(tree: Any) -> int:
    """Count the bytes of a placed pytree on one of its devices, whose shards are equal in size."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def state_line(state: TrainState) -> str:
    """Say for a header how much of the state each device holds."""
    trees = {"parameters": state.params, "optimizer state": state.optimizer_state}
    sizes = {name: bytes_on_a_device(tree) for name, tree in trees.items()}
    share = sum(sizes.values()) / max(
        sum(leaf.nbytes for leaf in jax.tree.leaves(trees)), 1
    )
    parts = " + ".join(f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items())
    return f"each device holds {'all' if share == 1 else f'{100 * share:.1f} %'} of it: {parts}"
