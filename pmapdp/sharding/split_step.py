"""The step of `jit` for a layout that splits more than the batch.

It's written as the files of `steps/` are: compare it with `jit.py`. Lessons 15 and 16
teach this file.
"""

import dataclasses

import jax
from jax import lax

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.sharding.layout import MeshLayout
from pmapdp.state import Task, TrainState
from pmapdp.steps.jit import accumulated_sums
from pmapdp.steps.placing import place
from pmapdp.steps.shared import Strategy, evaluation_sums, gradient_sums, update


def make_split_strategy(task: Task, layout: MeshLayout) -> Strategy:
    """Make the step of the global batch `[B, ...]`, split as the layout says."""
    batch_sharding = layout.batch_sharding(task)
    state_sharding = layout.state_sharding(task)
    # `shard_state` splits arrays that every device of the batch's axes needs. So the
    # parameters are gathered for the model, and the gradients are split like the
    # optimizer state: each device updates the shard that it keeps.
    gathered = layout.params_sharding(task)
    update_sharding = layout.update_sharding(task)

    # Placing
    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, state_sharding)

    def place_batch(batch: Batch) -> Batch:
        return place(batch, batch_sharding)

    # The step
    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, MetricSums]:
        # The compiler puts an all-gather here if the parameters are split.
        params = lax.with_sharding_constraint(state.params, gathered)
        whole = dataclasses.replace(state, params=params)
        if task.accumulate == 1 or not layout.batch_axes:
            gradients, sums, model_state = gradient_sums(task, whole, batch)
        else:
            gradients, sums, model_state = accumulated_sums(
                task, whole, batch, layout.mesh, layout.batch_axes
            )
        # And here a reduce-scatter, or an all-reduce of which each device keeps a part.
        gradients = lax.with_sharding_constraint(gradients, update_sharding)
        return update(task, state, gradients, sums.count, model_state), sums

    # Evaluation
    def eval_step(state: TrainState, batch: Batch) -> MetricSums:
        return evaluation_sums(task, state, batch)

    # The wrapper
    out_shardings = (state_sharding, layout.replicated)
    train_step = jax.jit(train_step, out_shardings=out_shardings, donate_argnums=0)
    eval_step = jax.jit(eval_step, out_shardings=layout.replicated)
    return Strategy(
        place_state=place_state,
        place_batch=place_batch,
        train_step=train_step,
        eval_step=eval_step,
        state_sharding=state_sharding,
    )
