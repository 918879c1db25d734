"""ZeRO, stage 1, written out for pmap and shard_map: each device keeps a shard of the optimizer state, and updates that
shard of the parameters. Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", SC
2020. Lesson 12 teaches this file.

The all-reduce of the gradients becomes a reduce-scatter and an all-gather; the update comes in between. An array is
split along its first axis that divides by N; one that has none is replicated, and updated on every device.
"""

import dataclasses
from typing import Any

import jax
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.sharding.layout import data_parallel
from pmapdp.state import Task, TrainState
from pmapdp.steps.placing import fetch, place
from pmapdp.steps.shared import AXIS, Body, Steps

REPLICATED = -1  # in place of an axis


def make_steps(strategy: str, task: Task, devices) -> Steps:
    """The step of one of N devices, for pmap and shard_map. Outside of it no array has a device axis."""
    N, body = len(devices), Body(task, axis_name=AXIS)
    layout = data_parallel(devices, "optimizer")
    replicated, split, state_sharding = layout.replicated, layout.batch(task).labels, layout.state(task)
    shards = layout.params(task, split=True)
    axes = jax.tree.map(split_axis, shards)

    def gradient_shards(state: TrainState, batch: Batch):
        """On one device: its shard of the gradients' sum over all devices, the metrics, and the batch statistics."""

        def reduce_scatter(g: jax.Array, axis: int) -> jax.Array:
            if axis == REPLICATED:
                return lax.psum(g, AXIS)
            return lax.psum_scatter(g, AXIS, scatter_dimension=axis, tiled=True)

        gradients, sums, batch_stats = body.gradient_sums(state, batch)
        return jax.tree.map(reduce_scatter, gradients, axes), lax.psum(sums, AXIS), batch_stats

    def all_gathered(params: Any) -> Any:
        """On one device: the parameters, from the shards of all."""

        def all_gather(p: jax.Array, axis: int) -> jax.Array:
            return p if axis == REPLICATED else lax.all_gather(p, AXIS, axis=axis, tiled=True)

        return jax.tree.map(all_gather, params, axes)

    def evaluation_sums(state: TrainState, batch: Batch):
        return lax.psum(body.evaluation_sums(state, batch), AXIS)

    if strategy == "pmap":
        reduce, gather, evaluate = mapped_by_pmap(gradient_shards, all_gathered, evaluation_sums, axes, devices)
    else:
        whole, rows, specs = PartitionSpec(), PartitionSpec(AXIS), jax.tree.map(lambda each: each.spec, shards)
        options: dict[str, Any] = {"mesh": layout.mesh, "check_vma": False}
        reduce = jax.shard_map(gradient_shards, in_specs=(whole, rows), out_specs=(specs, whole, whole), **options)
        gather = jax.shard_map(all_gathered, in_specs=(specs,), out_specs=whole, **options)
        evaluate = jax.shard_map(evaluation_sums, in_specs=(whole, rows), out_specs=whole, **options)

    def train_step(state: TrainState, batch: Batch):
        gradients, sums, batch_stats = reduce(without_optimizer(state), batch)
        # The update of arrays that are split like the optimizer state: each device computes its shard. The norm of all
        # gradients, where they are clipped by it, is the compiler's to find, as under jit.
        state = body.update(state, gradients, sums.count, batch_stats)
        return dataclasses.replace(state, params=gather(state.params)), sums

    def eval_step(state: TrainState, batch: Batch):
        return evaluate(without_optimizer(state), batch)

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, state_sharding)

    def place_batch(batch: Batch) -> Batch:
        if strategy == "pmap":
            batch = jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch)
        return place(batch, split)

    train_step = jax.jit(train_step, out_shardings=(state_sharding, replicated), donate_argnums=0)
    eval_step = jax.jit(eval_step, out_shardings=replicated)
    return Steps(place_state, place_batch, train_step, eval_step, fetch, state_sharding)


def split_axis(sharding: NamedSharding) -> int:
    """The axis along which an array is split."""
    return next((axis for axis, entry in enumerate(sharding.spec) if entry), REPLICATED)


def without_optimizer(state: TrainState) -> TrainState:
    """What the forward and backward pass need."""
    return dataclasses.replace(state, optimizer_state=())


def mapped_by_pmap(gradient_shards, all_gathered, evaluation_sums, axes: Any, devices) -> tuple[Any, Any, Any]:
    """The three functions of one device under pmap. It maps over a device axis: `[784, 512]` in 8 shards is
    `[8, 98, 512]` for it. Making the one from the other moves nothing."""
    N = len(devices)
    mapped = jax.tree.map(lambda axis: None if axis == REPLICATED else axis, axes)
    options: dict[str, Any] = {"axis_name": AXIS, "devices": devices}
    scatter = jax.pmap(gradient_shards, in_axes=(None, 0), out_axes=(mapped, None, None), **options)
    gather = jax.pmap(all_gathered, in_axes=(mapped,), out_axes=None, **options)

    def joined(x: jax.Array, axis: int) -> jax.Array:
        return x if axis == REPLICATED else x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])

    def stacked(x: jax.Array, axis: int) -> jax.Array:
        return x if axis == REPLICATED else x.reshape(*x.shape[:axis], N, -1, *x.shape[axis + 1 :])

    def reduce(state: TrainState, batch: Batch):
        gradients, sums, batch_stats = scatter(state, batch)
        return jax.tree.map(joined, gradients, axes), sums, batch_stats

    evaluate = jax.pmap(evaluation_sums, in_axes=(None, 0), out_axes=None, **options)
    return reduce, lambda params: gather(jax.tree.map(stacked, params, axes)), evaluate
