"""The training step of `jit` where a layout splits more than the batch, and where gradients are accumulated.

Lessons 15 and 16 teach this file; `pmapdp/steps/jit.py` is the step without either.
"""

import dataclasses
import functools
from typing import Any

import jax
from jax import lax
from jax.sharding import PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.sharding.layout import MeshLayout
from pmapdp.state import Task, TrainState
from pmapdp.steps.placing import fetch, place
from pmapdp.steps.shared import Strategy, evaluation_sums, gradient_sums, update


def make_strategy(task: Task, layout: MeshLayout) -> Strategy:
    """The step of the global batch `[B, ...]`, which is split as the layout says, like the state: the step stays the
    same."""
    replicated, split, state_sharding = layout.replicated, layout.batch(task), layout.state(task)

    # What `shard_state` splits, every device of the batch's axes needs: the parameters are gathered for the model, and
    # the gradients are split like the optimizer state, so that each device updates the shard that it keeps.
    used = layout.params(task, split=False)
    updated = layout.params(task, split=layout.shard_state != "none")

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, state_sharding)

    def place_batch(batch: Batch) -> Batch:
        return place(batch, split)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, MetricSums]:
        in_use = dataclasses.replace(state, params=lax.with_sharding_constraint(state.params, used))
        if task.accumulate == 1 or layout.batch_shards == 1:
            gradients, sums, model_state = gradient_sums(task, in_use, batch)
        else:
            gradients, sums, model_state = accumulated_sums(in_use, batch)
        gradients = lax.with_sharding_constraint(gradients, updated)
        return update(task, state, gradients, sums.count, model_state), sums

    def accumulated_sums(state: TrainState, batch: Batch) -> tuple[Any, MetricSums, Any]:
        """Left alone, the compiler would all-reduce after each micro-batch. Inside `shard_map` every device adds up
        its own, and gives its sums as one row of `[N, ...]`; adding the rows then takes a single all-reduce. Other axes
        of the mesh stay the compiler's."""
        axes = layout.batch_axes

        def rows(state: TrainState, batch: Batch) -> tuple[Any, Any]:
            gradients, sums, model_state = gradient_sums(task, state, batch, axis_name=axes)
            return jax.tree.map(lambda x: x[None], (gradients, sums)), model_state

        specs: dict[str, Any] = {
            "in_specs": (PartitionSpec(), PartitionSpec(axes)),
            "out_specs": (PartitionSpec(axes), PartitionSpec()),
            "axis_names": set(axes),
        }
        per_device, model_state = jax.shard_map(rows, mesh=layout.mesh, **specs, check_vma=False)(state, batch)
        return *jax.tree.map(lambda x: x.sum(0), per_device), model_state

    return Strategy(
        place_state,
        place_batch,
        jax.jit(train_step, out_shardings=(state_sharding, replicated), donate_argnums=0),
        jax.jit(functools.partial(evaluation_sums, task), out_shardings=replicated),
        fetch,
        state_sharding,
    )
