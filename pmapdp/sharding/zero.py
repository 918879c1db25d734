"""ZeRO, stage 1, written out for pmap and shard_map: each device keeps a shard of the optimizer state, and updates that
shard of the parameters. Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC
2020. Lesson 16 teaches this file.

The all-reduce of the gradients becomes a reduce-scatter and an all-gather; the update comes in between. An array is
split along its first axis that divides by N; one that has none is replicated, and updated on every device.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.sharding.layout import MeshLayout
from pmapdp.state import Task, TrainState
from pmapdp.steps.shared import AXIS, gradient_sums, update

REPLICATED = -1  # in place of the axis along which an array is split


def make_train_step(strategy: str, task: Task, layout: MeshLayout) -> Callable[..., Any]:
    """The training step of pmap or shard_map. Outside of what one device does, no array has a device axis."""
    specs = jax.tree.map(lambda sharding: sharding.spec, layout.params(task, split=True))
    axes = jax.tree.map(lambda spec: next((axis for axis, over in enumerate(spec) if over), REPLICATED), specs)

    def gradient_shards(state: TrainState, batch: Batch) -> tuple[Any, MetricSums, Any]:
        """On one device: its shard of the gradients' sum over all devices, the metrics, the model's other arrays."""

        def reduce_scatter(g: jax.Array, axis: int) -> jax.Array:
            if axis == REPLICATED:
                return lax.psum(g, AXIS)
            return lax.psum_scatter(g, AXIS, scatter_dimension=axis, tiled=True)

        gradients, sums, model_state = gradient_sums(task, state, batch, axis_name=AXIS)
        return jax.tree.map(reduce_scatter, gradients, axes), lax.psum(sums, AXIS), model_state

    def all_gathered(params: Any) -> Any:
        """On one device: the parameters, from the shards of all."""

        def all_gather(p: jax.Array, axis: int) -> jax.Array:
            return p if axis == REPLICATED else lax.all_gather(p, AXIS, axis=axis, tiled=True)

        return jax.tree.map(all_gather, params, axes)

    reduce = mapped(strategy, layout.mesh, gradient_shards, (REPLICATED, 0), (axes, REPLICATED, REPLICATED))
    gather = mapped(strategy, layout.mesh, all_gathered, (axes,), REPLICATED)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, MetricSums]:
        # Only the update needs the optimizer state.
        gradients, sums, model_state = reduce(dataclasses.replace(state, optimizer_state=()), batch)
        # The update of arrays that are split like the optimizer state: each device computes its shard. The norm of all
        # gradients, where they are clipped by it, is the compiler's to find, as under jit.
        state = update(task, state, gradients, sums.count, model_state)
        return dataclasses.replace(state, params=gather(state.params)), sums

    return jax.jit(train_step, out_shardings=(layout.state(task), layout.replicated), donate_argnums=0)


def mapped(
    strategy: str, mesh: Mesh, function: Callable[..., Any], inputs: tuple[Any, ...], outputs: Any
) -> Callable[..., Any]:
    """`function` of one device as a function of global arrays. The trees `inputs`, one for each argument, and `outputs`
    have the axis along which the devices split each array."""
    if strategy == "shard_map":

        def spec(axis: int) -> PartitionSpec:
            return PartitionSpec() if axis == REPLICATED else PartitionSpec(*[None] * axis, AXIS)

        in_specs, out_specs = jax.tree.map(spec, (inputs, outputs))
        return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)

    in_axes, out_axes = jax.tree.map(lambda axis: None if axis == REPLICATED else axis, (inputs, outputs))
    on_devices = jax.pmap(function, AXIS, in_axes=in_axes, out_axes=out_axes, devices=list(mesh.devices))

    # pmap maps over a device axis: `[784, 512]` in 8 shards is `[8, 98, 512]` for it. Making the one from the other
    # moves nothing.
    def stacked(axis: int, x: jax.Array) -> jax.Array:
        return x if axis == REPLICATED else x.reshape(*x.shape[:axis], mesh.size, -1, *x.shape[axis + 1 :])

    def joined(axis: int, x: jax.Array) -> jax.Array:
        return x if axis == REPLICATED else x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    def on_global_arrays(*arguments: Any) -> Any:
        results = on_devices(*jax.tree.map(stacked, jax.tree.broadcast(inputs, arguments), arguments))
        return jax.tree.map(joined, jax.tree.broadcast(outputs, results), results)

    return on_global_arrays
