"""Logical axis names -> mesh axes -> NamedSharding, for parameters, optimizer state, running statistics, batches.

Lessons 15 and 16 teach this file; `names.py` has the names.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.errors import UserError
from pmapdp.sharding.names import Axes, logical_axes
from pmapdp.sharding.notation import BATCH, DATA, Rules, mesh_text
from pmapdp.state import Task, TrainState, initial_state


@dataclass(frozen=True)
class MeshLayout:
    """Which shard of every array is placed on which device: axes of the mesh split the logical axes that have rules.

    `shard_state` says what is split over the axes of the batch too, although all devices of that axis need it:
    `optimizer` is stage 1 of Rajbhandari et al., "ZeRO", SC 2020, `parameters` stage 3.
    """

    mesh: Mesh
    rules: Rules = field(default_factory=lambda: {BATCH: (DATA,)})
    shard_state: str = "none"

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """The mesh axes over which the examples are split."""
        return self.rules.get(BATCH, ())

    def shards(self, name: str | None) -> int:
        """Into how many shards the logical axis of this name is split."""
        return math.prod(self.mesh.shape[axis] for axis in self.rules.get(name or "", ()))

    @property
    def batch_shards(self) -> int:
        """Into how many shards the examples are split."""
        return self.shards(BATCH)

    def shards_on(self, devices: Sequence[jax.Device], task: Task) -> range:
        """The numbers, from 0, of the batch's shards on these devices of one process, which reads their examples. A
        `UserError` says that they do not follow one another, or that other axes of the inputs are split as well."""
        shape = tuple(self.shards(name) for name in task.input_axes)
        places = self.batch(task).inputs.devices_indices_map(shape)
        shards = {tuple(part.start or 0 for part in places[device]) for device in devices}
        first, last = (edge(row for row, *_ in shards) for edge in (min, max))
        if len(shards) < (last + 1 - first) * math.prod(shape[1:]):
            raise UserError(
                f"--mesh {mesh_text(dict(self.mesh.shape))} splits examples between processes of {len(devices)} "
                "devices, and each reads whole examples that follow one another: name the axes of the batch first, and "
                f"make the product of the others divide {len(devices)}"
            )
        return range(first, last + 1)

    @property
    def splits_state(self) -> bool:
        """Whether it splits anything beside the batch."""
        return self.shard_state != "none" or not set(self.rules) <= {BATCH}

    @property
    def text(self) -> str:
        """One line for a header, for example `mesh data=4,model=2: batch over data, hidden over model`."""
        rules = [f"{name} over {'+'.join(axes)}" for name, axes in self.rules.items() if axes]
        return f"mesh {mesh_text(dict(self.mesh.shape))}: {', '.join(rules)}"

    @property
    def replicated(self) -> NamedSharding:
        """A copy on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    def array(self, axes: Axes, *, split: bool = False) -> NamedSharding:
        """The sharding of an array. With `split` the batch's axes split the first axis that they divide as well; an
        array that has none is left as it is."""
        entries = [self.rules.get(name or "", ()) for name in axes.names]
        sizes = [size // self.shards(name) for name, size in zip(axes.names, axes.shape, strict=True)]
        first = next((axis for axis, size in enumerate(sizes) if size and size % self.batch_shards == 0), None)
        if split and first is not None:
            entries[first] += self.batch_axes
        return NamedSharding(self.mesh, PartitionSpec(*(entry or None for entry in entries)))

    def batch(self, task: Task) -> Batch:
        """The `NamedSharding` of each array of a batch."""
        rows = NamedSharding(self.mesh, PartitionSpec(self.batch_axes or None))
        inputs = [self.rules.get(name, ()) or None for name in task.input_axes]
        return Batch(NamedSharding(self.mesh, PartitionSpec(*inputs)), rows, rows, rows)

    def params(self, task: Task, *, split: bool) -> Any:
        """The `NamedSharding` of each parameter; with `split` also over the batch's axes."""
        return jax.tree.map(lambda axes: self.array(axes, split=split), logical_axes(task)[0])

    def state(self, task: Task) -> Any:
        """The `NamedSharding` of each array of the train state, or one for all of them. What optax keeps for a
        parameter is split as that is, if it has its shape.
        """
        if not self.splits_state:
            return self.replicated
        with jax.transfer_guard("allow"):  # optax makes some arrays to find the parameters' places
            shapes = jax.eval_shape(lambda: initial_state(task))
            optimizer_state = optax.tree_map_params(
                task.optimizer,
                lambda kept, sharding, p: sharding if kept.shape == p.shape else self.replicated,
                shapes.optimizer_state,
                self.params(task, split=self.shard_state != "none"),
                shapes.params,
                transform_non_params=lambda _: self.replicated,
            )
        return TrainState(
            step=self.replicated,
            params=self.params(task, split=self.shard_state == "parameters"),
            model_state=jax.tree.map(self.array, logical_axes(task)[1]),
            optimizer_state=optimizer_state,
        )


def data_parallel(devices: Sequence[jax.Device], shard_state: str = "none") -> MeshLayout:
    """One axis, over which the batch is split."""
    return MeshLayout(Mesh(np.array(devices), (DATA,)), shard_state=shard_state)


def bytes_on_a_device(tree: Any) -> int:
    """Bytes of a placed pytree on one of its devices, whose shards are equal in size."""
    return sum(math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def state_line(state: TrainState) -> str:
    """For a header: the share of the state that each device holds, and its bytes; of a tree that is split also how many
    bytes are replicated, because no axis of an array divides."""
    trees = {"parameters": state.params, "optimizer state": state.optimizer_state}
    held = {name: bytes_on_a_device(tree) for name, tree in trees.items()}
    all_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(trees))
    share = sum(held.values()) / max(all_bytes, 1)
    amount = "all" if share == 1 else f"{100 * share:.1f} %"
    parts = " + ".join(f"{name} {count / 1e6:.2f} MB" for name, count in held.items())
    line = f"each device holds {amount} of it: {parts}"
    for name, tree in trees.items():
        copies = [leaf.nbytes for leaf in jax.tree.leaves(tree) if leaf.sharding.is_fully_replicated]
        if 0 < len(copies) < len(jax.tree.leaves(tree)):
            line += f"; {sum(copies):,} bytes of the {name} are replicated"
    return line
