"""`jax.jit` with shardings: the program of a single device; the compiler splits it. Lesson 08 teaches this file."""

from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.state import Task, TrainState
from pmapdp.steps import Steps
from pmapdp.steps.body import Body
from pmapdp.steps.placing import fetch, place

AXIS = "data"


def make_steps(task: Task, devices) -> Steps:
    """The step of the global batch `[B, ...]`, which lies split over N devices; the state lies whole on each."""
    body = Body(task)
    mesh = Mesh(np.array(devices), (AXIS,))
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXIS))

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, replicated)

    def place_batch(batch: Batch) -> Batch:
        return place(batch, split)

    def train_step(state: TrainState, batch: Batch):
        if task.accumulate == 1:
            gradients, sums, batch_stats = body.gradient_sums(state, batch)
        else:
            gradients, sums, batch_stats = accumulated_sums(state, batch)
        return body.update(state, gradients, sums, batch_stats), sums

    def accumulated_sums(state: TrainState, batch: Batch):
        """Left alone, the compiler would all-reduce after each micro-batch. Inside `shard_map` every device adds up
        its own, and gives its sums as one row of `[N, ...]`; adding the rows then takes a single all-reduce."""

        def rows(state: TrainState, batch: Batch):
            gradients, sums, batch_stats = Body(task, axis_name=AXIS).gradient_sums(state, batch)
            return jax.tree.map(lambda x: x[None], (gradients, sums)), batch_stats

        specs: dict[str, Any] = {
            "in_specs": (PartitionSpec(), PartitionSpec(AXIS)),
            "out_specs": (PartitionSpec(AXIS), PartitionSpec()),
        }
        per_device, batch_stats = jax.shard_map(rows, mesh=mesh, **specs, check_vma=False)(state, batch)
        return *jax.tree.map(lambda x: x.sum(0), per_device), batch_stats

    def eval_step(state: TrainState, batch: Batch):
        return body.evaluation_sums(state, batch)

    # The all-reduce stands in the compiled program only: a sum over the split batch whose result is to lie
    # whole on every device needs one.
    return Steps(
        place_state,
        place_batch,
        jax.jit(train_step, out_shardings=replicated, donate_argnums=0),
        jax.jit(eval_step, out_shardings=replicated),
        fetch,
        replicated,
    )
