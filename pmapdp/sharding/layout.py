"""A layout splits axes of arrays over axes of a mesh of devices.

A model names the axes of its parameters: the kernel `[784, 512]` of a linear layer has
the axes `features` and `hidden`. A layout has rules for such names. `flags.py` makes it
of --mesh, --layout and --shard-state, and `split_step.py` places the arrays by it.
Lessons 15 and 16 teach this file.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.errors import UserError
from pmapdp.state import Task, TrainState, initial_state

Rules = dict[str, tuple[str, ...]]  # mesh axes by logical axis

BATCH = "batch"  # the logical axis of the examples


def mesh_text(sizes: Mapping[str, int]) -> str:
    """Write a mesh as on the command line."""
    return ",".join(f"{axis}={size}" for axis, size in sizes.items())


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

    params, _, model_state = nnx.state(task.model, task.trainable, nnx.RngState, ...)
    # The names are a variable's metadata, so the variable itself is a leaf here.
    params_axes, model_state_axes = jax.tree.map(
        axes_of,
        (params, model_state),
        is_leaf=lambda leaf: isinstance(leaf, nnx.Variable),
    )
    return nnx.to_pure_dict(params_axes), nnx.to_pure_dict(model_state_axes)


def is_masked(leaf: Any) -> bool:
    """Return True for the leaf that Optax keeps for a parameter it leaves out."""
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
        return self.mesh_axes(BATCH)

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
        return self.named_sharding()

    @property
    def text(self) -> str:
        """Describe the layout.

        For example `mesh data=4,model=2: batch over data, hidden over model`.
        """
        rules = [
            f"{name} over {'+'.join(axes)}" for name, axes in self.rules.items() if axes
        ]
        return f"mesh {mesh_text(self.mesh.shape)}: {', '.join(rules)}"

    def mesh_axes(self, name: str | None) -> tuple[str, ...]:
        """Return the mesh axes that split a logical axis, () if none does."""
        return self.rules.get(name or "", ())

    def shards(self, name: str | None) -> int:
        """Return the number of shards of a logical axis."""
        return math.prod(self.mesh.shape[axis] for axis in self.mesh_axes(name))

    def named_sharding(self, *entries: tuple[str, ...]) -> NamedSharding:
        """Make the sharding of an array, from the mesh axes that split each axis."""
        spec = PartitionSpec(*[entry or None for entry in entries])
        return NamedSharding(self.mesh, spec)

    def array_sharding(self, axes: Axes) -> NamedSharding:
        """Make the sharding of an array by the rules."""
        entries = [self.mesh_axes(name) for name in axes.names]
        return self.named_sharding(*entries)

    def zero_sharding(self, axes: Axes) -> NamedSharding:
        """Make the sharding of an array by the rules, and over the batch's axes too."""
        entries = [self.mesh_axes(name) for name in axes.names]
        # The first axis that they divide is enough. If there is none, every device
        # keeps the whole array. In a stack of layers it's the axis of the stack. The
        # step gathers all layers first, and this axis costs it the least memory, as
        # the asserts of lesson 16 show.
        for number, name in enumerate(axes.names):
            size = axes.shape[number] // self.shards(name)
            if size and size % self.batch_shards == 0:
                entries[number] += self.batch_axes
                break
        return self.named_sharding(*entries)

    def batch_sharding(self, task: Task) -> Batch:
        """Make the sharding of each array of a batch."""
        rows = self.named_sharding(self.batch_axes)
        entries = [self.mesh_axes(name) for name in task.input_axes]
        return Batch(self.named_sharding(*entries), rows, rows, rows)

    def params_sharding(self, task: Task) -> Any:
        """Make the sharding of each parameter, as the model computes with them."""
        return jax.tree.map(self.array_sharding, logical_axes(task)[0])

    def update_sharding(self, task: Task) -> Any:
        """Make the sharding of each parameter, as the optimizer updates them."""
        if self.shard_state == "none":
            return self.params_sharding(task)
        return jax.tree.map(self.zero_sharding, logical_axes(task)[0])

    def state_sharding(self, task: Task) -> Any:
        """Make the sharding of each array of the train state."""
        params_sharding = self.params_sharding(task)
        if self.shard_state == "parameters":
            params_sharding = self.update_sharding(task)
        _, model_state_axes = logical_axes(task)
        return TrainState(
            step=self.replicated,
            params=params_sharding,
            model_state=jax.tree.map(self.array_sharding, model_state_axes),
            optimizer_state=self.optimizer_sharding(task),
        )

    def optimizer_sharding(self, task: Task) -> Any:
        """Make the sharding of each array of the optimizer's state.

        An array that Optax keeps for a parameter is split as the parameter is, if it
        has its shape.
        """

        def sharding_of(leaf: Any, sharding: NamedSharding, param: Any) -> Any:
            if is_masked(leaf):  # another optimizer of optax.partition has it
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
                    self.update_sharding(task),
                    shapes.params,
                    transform_non_params=lambda _: self.replicated,
                    is_leaf=is_masked,
                )
            except ValueError as error:  # as optax.flatten's and scale_by_sm3's
                raise UserError(
                    "the optimizer keeps its state in other arrays than one for each "
                    "parameter, so it can't be placed: leave out --shard-state, and "
                    "any --mesh, or take another optimizer"
                ) from error

    def shards_on(self, devices: Sequence[jax.Device], task: Task) -> range:
        """Return the numbers of the batch's shards on the devices of one process.

        The process reads these examples, so they must follow one another.
        """
        # An array with one number a shard, whose indices are the numbers of the shards.
        shape = tuple(self.shards(name) for name in task.input_axes)
        indices = self.batch_sharding(task).inputs.devices_indices_map(shape)
        shards = set()
        for device in devices:
            shards.add(tuple(index.start or 0 for index in indices[device]))
        rows = [row for row, *_ in shards]
        first = min(rows)
        last = max(rows)
        # A gap between the rows, or rows that another process has in part.
        if len(shards) < (last + 1 - first) * math.prod(shape[1:]):
            raise UserError(
                f"--mesh {mesh_text(self.mesh.shape)} splits examples between "
                f"processes of {len(devices)} devices, and each reads whole examples "
                "that follow one another: name the axes of the batch first, and make "
                f"the product of the others divide {len(devices)}"
            )
        return range(first, last + 1)


def bytes_on_a_device(tree: Any) -> int:
    """Count the bytes of a placed pytree on one device. All shards are equal."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def state_line(state: TrainState) -> str:
    """Say for a header how much of the state each device holds."""
    trees = {"parameters": state.params, "optimizer": state.optimizer_state}
    sizes = {name: bytes_on_a_device(tree) for name, tree in trees.items()}
    whole = sum(leaf.nbytes for leaf in jax.tree.leaves(trees))
    fraction = sum(sizes.values()) / max(whole, 1)
    parts = [f"{name} {size / 1e6:.2f} MB" for name, size in sizes.items()]
    shown = "all" if fraction == 1 else f"{100 * fraction:.1f} %"
    return f"each device holds {shown} of it: {' + '.join(parts)}"
