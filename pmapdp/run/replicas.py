"""Whether the devices still hold equal copies of the state: an error of a device's memory raises no error by itself.

Each device makes a checksum of its copy of every array; the checksums, a few bytes, are gathered and compared.
"""

from collections import Counter

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from pmapdp.errors import ReplicasError, UserError
from pmapdp.job import Job
from pmapdp.run.checksums import word_sum
from pmapdp.state import TrainState, initial_state
from pmapdp.steps.placing import over_all_processes


class Replicas:
    """Compares the copies of the state after the first update, where `every` is given also after every so many updates
    and before each checkpoint; all processes make the same calls.

    What is split over some devices and replicated over others is compared where it is replicated; an array of which
    every device holds another shard is left out.
    """

    def __init__(self, job: Job, every: int | None):
        self.every = every
        # For each array that has copies: its name, and which part of it each device holds.
        self.parts: dict[int, tuple[str, list[str]]] = {}
        self.text = ""
        if len(job.devices) == 1:
            return
        shapes = jax.eval_shape(lambda: initial_state(job.task))
        self.sharding = jax.tree.broadcast(job.strategy.state_sharding, shapes)
        shardings: list[NamedSharding] = jax.tree.leaves(self.sharding)
        mesh = shardings[0].mesh
        self.devices = list(mesh.devices.flat)
        for number, (path, leaf) in enumerate(jax.tree_util.tree_leaves_with_path(shapes)):
            indices = shardings[number].devices_indices_map(leaf.shape)
            parts = [str(indices[device]) for device in self.devices]
            if len(set(parts)) < len(self.devices):
                self.parts[number] = jax.tree_util.keystr(path, simple=True, separator="/"), parts
        self.text = (
            f"every {every:,} updates, and before each checkpoint, the copies of {len(self.parts)} of "
            f"{len(shardings)} arrays of the state are compared between {len(self.devices)} devices"
            if every
            else ""
        )

        def on_a_device(leaves: list[jax.Array]) -> jax.Array:
            return jnp.stack([word_sum(leaf) for leaf in leaves])[None]

        rows, specs = PartitionSpec(mesh.axis_names), [shardings[number].spec for number in self.parts]
        program = jax.shard_map(on_a_device, mesh=mesh, in_specs=(specs,), out_specs=rows, check_vma=False)
        self.program = jax.jit(program, out_shardings=NamedSharding(mesh, PartitionSpec()))

    def difference(self, state: TrainState) -> tuple[str, jax.Device, int] | None:
        """The first array whose copies differ once the state is computed, a device whose copy is not that of the
        majority, and the number of devices in that; None where all are equal."""
        if not self.parts:
            return None
        leaves = jax.tree.leaves(over_all_processes(state, self.sharding))
        sums = jax.device_get(self.program([leaves[number] for number in self.parts]))  # [N, arrays]
        for (name, parts), column in zip(self.parts.values(), sums.T.tolist(), strict=True):
            for part in dict.fromkeys(parts):
                copies = {device: column[i] for i, device in enumerate(self.devices) if parts[i] == part}
                (common, number), *others = Counter(copies.values()).most_common()
                if others:
                    return name, next(device for device, copy in copies.items() if copy != common), number
        return None

    def require_equal(self, step: int, state: TrainState) -> None:
        """Compare the copies of the state after update `step`, where that was asked for. A `ReplicasError` names the
        first array and device that differ; which is wrong, the majority decides."""
        if self.every is not None and (found := self.difference(state)):
            name, odd, number = found
            raise ReplicasError(
                f"the copies of {name} differ after step {step:,}: that of device {odd.id} (process "
                f"{odd.process_index}) is not that of {number} other device(s), so this state was not kept: "
                "start the same command again, and without that device if it is named once more"
            )

    def require_same_update(self, state: TrainState) -> None:
        """Compare the copies of the state after the first update of this start: a layer that writes what it computed
        from the examples of its own device leaves the devices with other numbers. The `UserError` names it."""
        if found := self.difference(state):
            name = found[0].removeprefix("model_state/").removeprefix("params/")
            raise UserError(
                f"after the first update {name} differs between devices, because the layer that writes it saw the "
                "examples of its own device alone: average it over the devices, lax.pmean(x, axis_name) with the "
                "axis_name of current_context() if that is not None, or use nnx.BatchNorm, which is exchanged for one "
                "that does"
            )
