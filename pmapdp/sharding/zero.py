"""ZeRO, stage 1, written out for pmap and shard_map: each device keeps a part of the optimizer state and updates that
part of the parameters. Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models",
SC 2020. Lesson 12 teaches this file.

The all-reduce of the gradients is a reduce-scatter and an all-gather; the update comes in between. An array is split
along its first axis that divides by N; one that has none stays whole everywhere, and is updated everywhere.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.sharding.layout import data_parallel, split_dimension
from pmapdp.state import Task, TrainState, initial_state
from pmapdp.steps.placing import fetch, place
from pmapdp.steps.shared import AXIS, Body, Steps

WHOLE = -1  # in place of an axis: the array is replicated


def make_steps(strategy: str, task: Task, devices) -> Steps:
    """The step of one of N devices. Outside of it no array has a device axis: parts are parts of whole arrays."""
    N, body = len(devices), Body(task, axis_name=AXIS)
    layout = data_parallel(devices, "optimizer")
    replicated, split, state_sharding = layout.whole, layout.batch(task).labels, layout.state(task)
    shapes = jax.eval_shape(lambda: initial_state(task))

    def dimension(leaf) -> int:
        found = split_dimension(leaf.shape, N)
        return WHOLE if found is None else found

    dimensions = jax.tree.map(dimension, shapes.params)
    of_optimizer = optax.tree_map_params(
        task.optimizer,
        lambda _, d: d,
        shapes.optimizer_state,
        dimensions,
        transform_non_params=lambda _: WHOLE,
    )

    def scatter(gradients: Any, sums: MetricSums) -> tuple[Any, MetricSums]:
        """The sums over all devices; of the gradients this one gets its part."""

        def of_array(x: jax.Array, d: int) -> jax.Array:
            return lax.psum(x, AXIS) if d == WHOLE else lax.psum_scatter(x, AXIS, scatter_dimension=d, tiled=True)

        return jax.tree.map(of_array, gradients, dimensions), lax.psum(sums, AXIS)

    def part(x: jax.Array, d: int) -> jax.Array:
        """This device's part of what it holds whole."""
        size = x.shape[d] // N
        return x if d == WHOLE else lax.dynamic_slice_in_dim(x, lax.axis_index(AXIS) * size, size, d)

    def gather(params: Any) -> Any:
        """The whole parameters, from all devices' parts."""
        return jax.tree.map(
            lambda x, d: x if d == WHOLE else lax.all_gather(x, AXIS, axis=d, tiled=True), params, dimensions
        )

    def global_norm(gradients: Any) -> jax.Array:
        """The length of all gradients; a part counts where it lies, a whole one once."""
        squares = jax.tree.map(lambda g: jnp.square(g).sum(), gradients)
        whole = jax.tree.map(lambda s, d: s if d == WHOLE else jnp.zeros_like(s), squares, dimensions)
        parts = optax.tree.sub(squares, whole)
        return jnp.sqrt(optax.tree.sum(whole) + lax.psum(optax.tree.sum(parts), AXIS))

    def train_step(state: TrainState, batch: Batch):
        gradients, sums, batch_stats = body.gradient_sums(state, batch)
        gradients, sums = scatter(gradients, sums)
        mine = dataclasses.replace(state, params=jax.tree.map(part, state.params, dimensions))
        gradients = jax.tree.map(lambda g: g / sums.count.astype(g.dtype), gradients)
        updates, optimizer_state = optax.with_extra_args_support(task.optimizer).update(
            gradients, mine.optimizer_state, mine.params, global_norm=global_norm
        )
        mine = TrainState(state.step + 1, optax.apply_updates(mine.params, updates), batch_stats, optimizer_state)
        return dataclasses.replace(mine, params=gather(mine.params)), sums

    def eval_step(state: TrainState, batch: Batch):
        return lax.psum(body.evaluation_sums(state, batch), AXIS)

    if strategy == "pmap":
        # pmap maps over whole axes: `[784, 512]` in 8 parts is `[8, 98, 512]` for it, which moves nothing.
        axes = TrainState(None, None, None, jax.tree.map(lambda d: None if d == WHOLE else d, of_optimizer))
        options: dict[str, Any] = {"axis_name": AXIS, "devices": devices}
        mapped_train = jax.pmap(train_step, in_axes=(axes, 0), out_axes=(axes, None), **options)
        mapped_eval = jax.pmap(eval_step, in_axes=(None, 0), out_axes=None, **options)
    else:
        options = {"mesh": layout.mesh, "check_vma": False}
        whole, rows = PartitionSpec(), PartitionSpec(AXIS)
        specs = jax.tree.map(lambda sharding: sharding.spec, state_sharding)
        mapped_train = jax.shard_map(train_step, in_specs=(specs, rows), out_specs=(specs, whole), **options)
        mapped_eval = jax.shard_map(eval_step, in_specs=(whole, rows), out_specs=whole, **options)

    def stacked(x: jax.Array, d: int) -> jax.Array:
        return x if d == WHOLE else x.reshape(*x.shape[:d], N, -1, *x.shape[d + 1 :])

    def joined(x: jax.Array, d: int) -> jax.Array:
        return x if d == WHOLE else x.reshape(*x.shape[:d], -1, *x.shape[d + 2 :])

    def reshaped(state: TrainState, change) -> TrainState:
        if strategy != "pmap":
            return state
        return dataclasses.replace(state, optimizer_state=jax.tree.map(change, state.optimizer_state, of_optimizer))

    def train(state: TrainState, batch: Batch):
        state, sums = mapped_train(reshaped(state, stacked), batch)
        return reshaped(state, joined), sums

    def evaluate(state: TrainState, batch: Batch):
        return mapped_eval(dataclasses.replace(state, optimizer_state=()), batch)

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, state_sharding)

    def place_batch(batch: Batch) -> Batch:
        if strategy == "pmap":
            batch = jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch)
        return place(batch, split)

    return Steps(
        place_state,
        place_batch,
        jax.jit(train, out_shardings=(state_sharding, replicated), donate_argnums=0),
        jax.jit(evaluate, out_shardings=replicated),
        fetch,
        state_sharding,
    )
