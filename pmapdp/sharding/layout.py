"""A layout splits axes of arrays over axes of a mesh of devices.

    --mesh data=4,model=2               mesh axes and their sizes
    --layout model                      a named layout
    --layout hidden=model,embed=none    rules: logical axis = mesh axis, or none
    --layout model,batch=data+feature   both; + splits one logical axis over several
                                        mesh axes, and a later rule wins

A model names the axes of its parameters: the kernel `[784, 512]` of a linear layer has
the axes `features` and `hidden`. A layout has rules for such names. Lessons 15 and 16
teach this file.
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
from pmapdp.errors import UserError, explain_errors, unknown_name
from pmapdp.state import Task, TrainState, initial_state, named_leaves
from pmapdp.steps.shared import AXIS

Rules = dict[str, tuple[str, ...]]  # mesh axes by logical axis

BATCH = "batch"  # the logical axis of the examples
DATA_LAYOUT = "data"  # splits the batch alone, over the mesh axis of the same name
# Splitting the outputs of one matrix and the inputs of the next over the same devices
# needs one all-reduce for the two: Shoeybi et al., "Megatron-LM", arXiv:1909.08053,
# 2019.
MODEL: Rules = {"hidden": ("model",), "heads": ("model",)}
NAMED: dict[str, Rules] = {
    DATA_LAYOUT: {},
    "model": MODEL,
    "spatial": MODEL | {"features": ("feature",)},
}


# The flags


def parse_mesh(text: str) -> dict[str, int]:
    """Return the axes of a mesh and their sizes, in order."""
    sizes = {axis: int(size) for axis, size in re.findall(r"(\w+)=([1-9]\d*)\b", text)}
    # Written again, it must be the same text, or something was left over or twice.
    if not sizes or mesh_text(sizes) != text.replace(" ", ""):
        raise UserError(
            f"--mesh {text!r} is not a list of different axes with their sizes: "
            "try --mesh data=4,model=2"
        )
    return sizes


def mesh_text(sizes: dict[str, int]) -> str:
    """Write a mesh as on the command line."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


def number_of_devices(
    devices: int | None, mesh: str | None, processes: int = 1
) -> int | None:
    """Return the devices of each process, from --devices or --mesh.

    None without either.
    """
    if devices or not mesh:
        return devices
    return math.prod(parse_mesh(mesh).values()) // processes


def parse_layout(text: str) -> Rules:
    """Return the rules of a layout."""
    rules: Rules = {}
    for part in text.replace(" ", "").split(","):
        if part in NAMED:
            rules |= NAMED[part]
        elif re.fullmatch(r"\w+=\w+(\+\w+)*", part):
            name, _, axes = part.partition("=")
            rules[name] = () if axes == "none" else tuple(axes.split("+"))
        else:
            raise unknown_name("layout", part, [*NAMED, "hidden=model (a rule)"])
    return rules


def check_sharding(
    mesh: str | None, layout: str, shard_state: str, strategy: str
) -> None:
    """Refuse what only --strategy jit can do."""
    if strategy == "jit":
        return
    if mesh:
        flag = f"--mesh {mesh}"
    elif layout != DATA_LAYOUT:
        flag = f"--layout {layout}"
    elif shard_state != "none":
        flag = f"--shard-state {shard_state}"
    else:
        return
    raise UserError(
        f"{flag} needs --strategy jit, because --strategy {strategy} splits the batch "
        "alone"
    )


# The arrays


@dataclass(frozen=True)
class Axes:
    """The axes of an array.

    Attributes:
        names: The logical name of each axis. None: the axis is never split.
        shape: Their sizes.
    """

    names: tuple[str | None, ...]
    shape: tuple[int, ...]


def logical_axes(task: Task) -> tuple[Any, Any]:
    """Return the `Axes` of the parameters and of the model's other arrays."""

    def axes_of(leaf: Any) -> Axes:
        names = None
        if isinstance(leaf, nnx.Variable):  # otherwise it's a plain attribute
            names = leaf.get_metadata("out_sharding", None)
            leaf = leaf.get_value()
        return Axes(tuple(names or (None,) * leaf.ndim), leaf.shape)

    def axes_in(arrays: Any) -> Any:
        axes = jax.tree.map(axes_of, arrays, is_leaf=is_variable)
        return nnx.to_pure_dict(axes)

    params, _, model_state = nnx.state(task.model, task.trainable, nnx.RngState, ...)
    return axes_in(params), axes_in(model_state)


def is_variable(leaf: Any) -> bool:
    """Return True for a variable of Flax, whose names of axes are its metadata."""
    return isinstance(leaf, nnx.Variable)


def is_masked(leaf: Any) -> bool:
    """Return True for what Optax keeps for a parameter that an optimizer leaves out."""
    return isinstance(leaf, optax.MaskedNode)


@dataclass(frozen=True)
class MeshLayout:
    """The shardings of all arrays.

    Attributes:
        mesh: The mesh of the devices.
        rules: The axes of the mesh that split each logical axis.
        shard_state: "optimizer" or "parameters" splits these over the batch's axes too,
            although all of their devices need them: stage 1 and stage 3 of Rajbhandari
            et al., "ZeRO", SC 2020.
    """

    mesh: Mesh
    rules: Rules
    shard_state: str = "none"

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """Return the mesh axes over which the examples are split."""
        return self.rules.get(BATCH, ())

    @property
    def batch_shards(self) -> int:
        """Return the number of parts of the batch."""
        return self.shards(BATCH)

    @property
    def splits_state(self) -> bool:
        """Return True if a device doesn't hold all of the state."""
        return self.shard_state != "none" or not set(self.rules) <= {BATCH}

    @property
    def replicated(self) -> NamedSharding:
        """Make the sharding of an array that each device holds whole."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def text(self) -> str:
        """Describe the layout.

        For example `mesh data=4,model=2: batch over data, hidden over model`.
        """
        rules = [
            f"{name} over {'+'.join(axes)}" for name, axes in self.rules.items() if axes
        ]
        return f"mesh {mesh_text(dict(self.mesh.shape))}: {', '.join(rules)}"

    def shards(self, name: str | None) -> int:
        """Return the number of shards of a logical axis."""
        axes = self.rules.get(name or "", ())
        return math.prod(self.mesh.shape[axis] for axis in axes)

    def array_sharding(self, axes: Axes, *, split: bool = False) -> NamedSharding:
        """Make the sharding of an array.

        With `split` the batch's axes also split the first axis that they divide.
        """
        entries = [self.rules.get(name or "", ()) for name in axes.names]
        if split:
            # One axis is enough. If none divides, every device keeps the whole array.
            for number, name in enumerate(axes.names):
                size = axes.shape[number] // self.shards(name)
                if size and size % self.batch_shards == 0:
                    entries[number] += self.batch_axes
                    break
        spec = PartitionSpec(*[entry or None for entry in entries])
        return NamedSharding(self.mesh, spec)

    def batch_sharding(self, task: Task) -> Batch:
        """Make the sharding of each array of a batch."""
        rows = NamedSharding(self.mesh, PartitionSpec(self.batch_axes or None))
        entries = [self.rules.get(name, ()) or None for name in task.input_axes]
        inputs = NamedSharding(self.mesh, PartitionSpec(*entries))
        return Batch(inputs, rows, rows, rows)

    def params_sharding(self, task: Task, *, split: bool) -> Any:
        """Make the sharding of each parameter.

        With `split` the batch's axes split them as well.
        """

        def sharding_of(axes: Axes) -> NamedSharding:
            return self.array_sharding(axes, split=split)

        return jax.tree.map(sharding_of, logical_axes(task)[0])

    def state_sharding(self, task: Task) -> Any:
        """Make the sharding of each array of the train state, or one for all."""
        if not self.splits_state:
            return self.replicated
        split_params = self.shard_state == "parameters"
        _, model_state_axes = logical_axes(task)
        return TrainState(
            step=self.replicated,
            params=self.params_sharding(task, split=split_params),
            model_state=jax.tree.map(self.array_sharding, model_state_axes),
            optimizer_state=self.optimizer_sharding(task),
        )

    def optimizer_sharding(self, task: Task) -> Any:
        """Make the sharding of each array of the optimizer's state.

        An array that Optax keeps for a parameter is split as the parameter is, if it
        has its shape.
        """

        def sharding_of(leaf: Any, sharding: NamedSharding, param: Any) -> Any:
            if is_masked(leaf):  # of an optimizer for others, as in optax.partition
                return leaf
            if leaf.shape == param.shape:
                return sharding
            return self.replicated

        # Optax makes some arrays to find the places of the parameters.
        with jax.transfer_guard("allow"):
            shapes = jax.eval_shape(lambda: initial_state(task))
            try:
                return optax.tree_map_params(
                    task.optimizer,
                    sharding_of,
                    shapes.optimizer_state,
                    self.params_sharding(task, split=self.shard_state != "none"),
                    shapes.params,
                    transform_non_params=lambda _: self.replicated,
                    is_leaf=is_masked,
                )
            except ValueError as error:  # optax.flatten and scale_by_sm3 have such
                raise UserError(
                    "the optimizer keeps its state in other arrays than one for each "
                    "parameter, so it can't be placed with --shard-state or --mesh: "
                    "leave these out, or take another optimizer"
                ) from error

    def shards_on(self, devices: Sequence[jax.Device], task: Task) -> range:
        """Return the numbers of the batch's shards on the devices of one process.

        The process reads these examples, so they must follow one another.
        """
        shape = tuple(self.shards(name) for name in task.input_axes)
        places = self.batch_sharding(task).inputs.devices_indices_map(shape)
        shards = set()
        for device in devices:
            shards.add(tuple(part.start or 0 for part in places[device]))
        rows = [row for row, *_ in shards]
        first = min(rows)
        last = max(rows)
        if len(shards) < (last + 1 - first) * math.prod(shape[1:]):
            raise UserError(
                f"--mesh {mesh_text(dict(self.mesh.shape))} splits examples between "
                f"processes of {len(devices)} devices, and each reads whole examples "
                "that follow one another: name the axes of the batch first, and make "
                f"the product of the others divide {len(devices)}"
            )
        return range(first, last + 1)


# Fitting the flags to a model


def fit_layout(
    devices: Sequence[jax.Device],
    task: Task,
    inputs: tuple[int, ...],
    *,
    mesh: str | None = None,
    layout: str = DATA_LAYOUT,
    shard_state: str = "none",
) -> MeshLayout:
    """Return the layout of --mesh, --layout and --shard-state for a model and devices.

    An axis with a rule must divide, and a mesh axis must split something. `shard_state`
    splits what it can.

    Args:
        devices: In the order of the mesh.
        task: The model and its optimizer.
        inputs: The shape of one example.
        mesh: As on the command line. None: one axis, `data`.
        layout: As on the command line.
        shard_state: "none", "optimizer" or "parameters".

    Raises:
        UserError: They don't fit. The message has flags that do.
    """
    N = len(devices)
    sizes = parse_mesh(mesh) if mesh else {AXIS: N}
    advice = f"try --mesh {AXIS}={N} --layout {DATA_LAYOUT}"
    places = math.prod(sizes.values())
    if places != N:
        raise UserError(
            f"--mesh {mesh} has {places} places for {N} device(s): {advice}"
        )
    input_shape = (0, *inputs)[: len(task.input_axes)]
    arrays = {"the inputs": Axes(task.input_axes, input_shape)}
    arrays |= named_leaves(*logical_axes(task))
    rules = find_rules(layout, arrays, sizes)
    check_mesh(layout, rules, sizes, advice)
    device_array = np.array(devices).reshape(tuple(sizes.values()))
    # Axes of type Auto: the compiler splits what has no sharding.
    fitted = MeshLayout(Mesh(device_array, tuple(sizes)), rules, shard_state)
    for name, axes in arrays.items():
        failure = f"--layout {layout} does not fit {name} {[*axes.shape]}"
        # JAX raises for unequal shards, and for a mesh axis that splits two axes.
        with explain_errors(f"{failure} on {mesh_text(sizes)}", advice):
            fitted.array_sharding(axes).shard_shape(axes.shape)
    if shard_state != "none":
        check_shard_state(fitted, task)
    return fitted


def find_rules(layout: str, arrays: dict[str, Axes], sizes: dict[str, int]) -> Rules:
    """Return the rules of a layout for the axes that some arrays have."""
    known = {BATCH}
    for axes in arrays.values():
        known.update(name for name in axes.names if name)
    requested = parse_layout(layout)
    # A named layout may have rules for axes that this model hasn't.
    for name in sorted(requested.keys() - known - NAMED["spatial"].keys()):
        raise unknown_name(
            f"axis of the model in --layout {layout}", name, sorted(known)
        )
    rules: Rules = {}
    if AXIS in sizes:
        rules[BATCH] = (AXIS,)
    rules |= {name: split for name, split in requested.items() if name in known}
    return rules


def check_shard_state(layout: MeshLayout, task: Task) -> None:
    """Refuse a --shard-state that would split nothing."""
    split = layout.params_sharding(task, split=True)
    whole = layout.params_sharding(task, split=False)
    if layout.batch_shards == 1 or split == whole:
        raise UserError(
            f"--shard-state {layout.shard_state} can split nothing of this model over "
            f"the {layout.batch_shards} device(s) that share the batch: try another "
            "number of devices, for example 8, or --shard-state none"
        )


def check_mesh(layout: str, rules: Rules, sizes: dict[str, int], advice: str) -> None:
    """Refuse rules for unknown mesh axes, and a mesh axis that splits nothing.

    The devices along an axis that splits nothing would all do the same work.
    """
    used: dict[str, str] = {}  # {mesh axis: axis of the model}
    for name, axes in rules.items():
        used |= dict.fromkeys(axes, name)
    # The advice is a mesh of as many devices, with 2 along each axis that is missing.
    missing = {axis: 2 for axis in used if axis not in sizes}
    for axis in missing:
        rest, left = divmod(math.prod(sizes.values()), 2 ** len(missing))
        if not left:
            advice = f"try --mesh {mesh_text({AXIS: rest} | missing)}"
        raise UserError(
            f"--layout {layout} splits {used[axis]} over {axis}, which is no axis of "
            f"the mesh {mesh_text(sizes)}: {advice}"
        )
    for axis, size in sizes.items():
        if size > 1 and axis not in used:
            raise UserError(
                f"the mesh axis {axis} of {mesh_text(sizes)} splits nothing under "
                f"--layout {layout}, so its {size} devices would do the same work: "
                f"{advice}"
            )


# What a device holds


def bytes_on_a_device(tree: Any) -> int:
    """Count the bytes of a placed pytree on one device. All shards are equal."""
    total = 0
    for leaf in jax.tree.leaves(tree):
        shape = leaf.sharding.shard_shape(leaf.shape)
        total += math.prod(shape) * leaf.dtype.itemsize
    return total


def state_line(state: TrainState) -> str:
    """Say for a header how much of the state each device holds."""
    trees = {"parameters": state.params, "optimizer": state.optimizer_state}
    sizes = {name: bytes_on_a_device(tree) for name, tree in trees.items()}
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(trees))
    fraction = sum(sizes.values()) / max(whole, 1)
    parts = [f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items()]
    shown = "all" if fraction == 1 else f"{100 * fraction:.1f} %"
    return f"each device holds {shown} of it: {' + '.join(parts)}"
