"""`jax.jit` with shardings: the program of a single device; the compiler splits it. Lesson 08 teaches this file.

Lessons 11 and 12 give it other layouts.
"""

import dataclasses
from typing import Any

import jax
from jax.sharding import PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.sharding.layout import Layout, data_parallel
from pmapdp.state import Task, TrainState
from pmapdp.steps import Steps
from pmapdp.steps.placing import fetch, place
from pmapdp.steps.shared import Body


def make_steps(task: Task, devices, layout: Layout | None = None) -> Steps:
    """The step of the global batch `[B, ...]`, which lies split over the devices; without `layout` over all of them,
    and the state lies whole on each. A layout splits the state too: the step stays the same."""
    body = Body(task)
    layout = layout or data_parallel(devices)
    replicated, split, state_sharding = layout.whole, layout.batch(task), layout.state(task)

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, state_sharding)

    def place_batch(batch: Batch) -> Batch:
        return place(batch, split)

    def train_step(state: TrainState, batch: Batch):
        in_use = dataclasses.replace(state, params=layout.gathered(task, state.params))
        if task.accumulate == 1 or layout.batch_shards == 1:
            gradients, sums, batch_stats = body.gradient_sums(in_use, batch)
        else:
            gradients, sums, batch_stats = accumulated_sums(in_use, batch)
        return body.update(state, layout.scattered(task, gradients), sums, batch_stats), sums

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

    def eval_step(state: TrainState, batch: Batch):
        return body.evaluation_sums(state, batch)

    # The all-reduce stands in the compiled program only: a sum over the split batch whose result is to lie
    # whole on every device needs one.
    return Steps(
        place_state,
        place_batch,
        jax.jit(train_step, out_shardings=(state_sharding, replicated), donate_argnums=0),
        jax.jit(eval_step, out_shardings=replicated),
        fetch,
        state_sharding,
    )
