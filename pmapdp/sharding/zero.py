"""ZeRO, stage 1, for pmap and shard_map: each device keeps a shard of the optimizer
state, and updates its shard of the parameters. Lesson 16 teaches this file.

The all-reduce of the gradients becomes a reduce-scatter and an all-gather, with the
update in between. An array is split along its first axis that is divisible by N. If it
has none, it is replicated, and updated on every device.

Source: Rajbhandari et al., "ZeRO: memory optimizations toward training trillion
parameter models", SC 2020.
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


def make_train_step(
    strategy: str, task: Task, layout: MeshLayout
) -> Callable[..., Any]:
    """Make the training step of pmap or shard_map. Its arrays are global and have no device axis."""
    on_devices = {"pmap": map_by_pmap, "shard_map": map_by_shard_map}[strategy]
    specs = jax.tree.map(
        lambda sharding: sharding.spec, layout.params_sharding(task, split=True)
    )
    axes = jax.tree.map(
        lambda spec: next((axis for axis, over in enumerate(spec) if over), REPLICATED),
        specs,
    )

    def gradient_shards(state: TrainState, batch: Batch) -> tuple[Any, MetricSums, Any]:
        """Return, on one device, its shard of the sum of all gradients, the metrics, and the model's other arrays."""

        def reduce_scatter(g: jax.Array, axis: int) -> jax.Array:
            if axis == REPLICATED:
                return lax.psum(g, AXIS)
            return lax.psum_scatter(g, AXIS, scatter_dimension=axis, tiled=True)

        gradients, sums, model_state = gradient_sums(task, state, batch, axis_name=AXIS)
        return (
            jax.tree.map(reduce_scatter, gradients, axes),
            lax.psum(sums, AXIS),
            model_state,
        )

    def whole_params(params: Any) -> Any:
        """Return, on one device, the parameters from the shards of all."""

        def all_gather(p: jax.Array, axis: int) -> jax.Array:
            return (
                p
                if axis == REPLICATED
                else lax.all_gather(p, AXIS, axis=axis, tiled=True)
            )

        return jax.tree.map(all_gather, params, axes)

    reduce = on_devices(
        layout.mesh, gradient_shards, (REPLICATED, 0), (axes, REPLICATED, REPLICATED)
    )
    gather = on_devices(layout.mesh, whole_params, (axes,), REPLICATED)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, MetricSums]:
        # Only the update needs the optimizer state.
        gradients, sums, model_state = reduce(
            dataclasses.replace(state, optimizer_state=()), batch
        )
        # The arrays are split like the optimizer state, so each device computes its
        # shard of the update. If gradients are clipped by the norm of all of them, the
        # compiler finds it, as under jit.
        state = update(task, state, gradients, sums.count, model_state)
        return dataclasses.replace(state, params=gather(state.params)), sums

    return jax.jit(
        train_step,
        out_shardings=(layout.state_sharding(task), layout.replicated),
        donate_argnums=0,
    )


def map_by_shard_map(
    mesh: Mesh, function: Callable[..., Any], inputs: tuple[Any, ...], outputs: Any
) -> Any:
    """Make a function of global arrays from `function`, the program of one device.

    The trees `inputs`, one for each argument, and `outputs` have the axis along which
    the devices split each array.
    """

    def spec(axis: int) -> PartitionSpec:
        return (
            PartitionSpec()
            if axis == REPLICATED
            else PartitionSpec(*[None] * axis, AXIS)
        )

    in_specs, out_specs = jax.tree.map(spec, (inputs, outputs))
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


def map_by_pmap(
    mesh: Mesh, function: Callable[..., Any], inputs: tuple[Any, ...], outputs: Any
) -> Any:
    """Do the same with pmap, which maps over a device axis: `[784, 512]` in 8 shards is `[8, 98, 512]` for it.

    Reshaping one into the other moves nothing.
    """
    in_axes, out_axes = jax.tree.map(
        lambda axis: None if axis == REPLICATED else axis, (inputs, outputs)
    )
    mapped = jax.pmap(
        function, AXIS, in_axes=in_axes, out_axes=out_axes, devices=list(mesh.devices)
    )

    def stack(axis: int, x: jax.Array) -> jax.Array:
        return (
            x
            if axis == REPLICATED
            else x.reshape(*x.shape[:axis], mesh.size, -1, *x.shape[axis + 1 :])
        )

    def join(axis: int, x: jax.Array) -> jax.Array:
        return (
            x
            if axis == REPLICATED
            else x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
        )

    def on_global_arrays(*arguments: Any) -> Any:
        results = mapped(
            *jax.tree.map(stack, jax.tree.broadcast(inputs, arguments), arguments)
        )
        return jax.tree.map(join, jax.tree.broadcast(outputs, results), results)

    return on_global_arrays
