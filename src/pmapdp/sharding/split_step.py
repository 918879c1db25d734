"""The training step of `jit` where a layout splits more than the batch, and where gradients are accumulated.

Lessons 15 and 16 teach this file; `pmapdp/steps/jit.py` is the step without either.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.sharding import zero
from pmapdp.sharding.layout import Layout, data_parallel
from pmapdp.state import Task, TrainState
from pmapdp.steps import make_steps as plain_steps
from pmapdp.steps.placing import fetch, place
from pmapdp.steps.shared import Body, Steps


def make_steps(strategy: str, task: Task, devices: Sequence[jax.Device], layout: Layout | None = None) -> Steps:
    """The five functions of `strategy` (pmap, jit, shard_map or single) on `devices`. The layout says which shard of
    every array each holds; default: the batch is split, the state is replicated. pmap and shard_map take of it whether
    the optimizer state is split."""
    if strategy == "jit" and (task.accumulate > 1 or (layout is not None and layout.splits_state)):
        return make_split_steps(task, layout or data_parallel(devices))
    if layout is not None and layout.shard_state == "optimizer":
        train_step = zero.make_train_step(strategy, task, layout)
        return make_split_steps(task, layout)._replace(train_step=train_step)
    return plain_steps(strategy, task, devices)


def make_split_steps(task: Task, layout: Layout) -> Steps:
    """The step of the global batch `[B, ...]`, which is split as the layout says, like the state: the step stays the
    same."""
    body = Body(task)
    replicated, split, state_sharding = layout.replicated, layout.batch(task), layout.state(task)

    # What `shard_state` splits, every device of the batch's axes needs: the parameters are gathered for the model, and
    # the gradients are split like the optimizer state, so that each device updates the shard that it keeps.
    used = layout.params(task, split=False)
    updated = layout.params(task, split=layout.shard_state != "none")

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, state_sharding)

    def place_batch(batch: Batch) -> Batch:
        return place(batch, split)

    def train_step(state: TrainState, batch: Batch):
        in_use = dataclasses.replace(state, params=lax.with_sharding_constraint(state.params, used))
        if task.accumulate == 1 or layout.batch_shards == 1:
            gradients, sums, batch_stats = body.gradient_sums(in_use, batch)
        else:
            gradients, sums, batch_stats = accumulated_sums(in_use, batch)
        gradients = lax.with_sharding_constraint(gradients, updated)
        return body.update(state, gradients, sums.count, batch_stats), sums

    def accumulated_sums(state: TrainState, batch: Batch):
        """Left alone, the compiler would all-reduce after each micro-batch. Inside `shard_map` every device adds up
        its own, and gives its sums as one row of `[N, ...]`; adding the rows then takes a single all-reduce. Other axes
        of the mesh stay the compiler's."""
        axes = layout.batch_axes
        per_device_body = Body(task, axis_name=axes)

        def rows(state: TrainState, batch: Batch):
            gradients, sums, batch_stats = per_device_body.gradient_sums(state, batch)
            return jax.tree.map(lambda x: x[None], (gradients, sums)), batch_stats

        specs: dict[str, Any] = {
            "in_specs": (PartitionSpec(), PartitionSpec(axes)),
            "out_specs": (PartitionSpec(axes), PartitionSpec()),
            "axis_names": set(axes),
        }
        per_device, batch_stats = jax.shard_map(rows, mesh=layout.mesh, **specs, check_vma=False)(state, batch)
        return *jax.tree.map(lambda x: x.sum(0), per_device), batch_stats

    return Steps(
        place_state,
        place_batch,
        jax.jit(train_step, out_shardings=(state_sharding, replicated), donate_argnums=0),
        jax.jit(body.evaluation_sums, out_shardings=replicated),
        fetch,
        state_sharding,
    )
