"""One device, no splitting and no averaging: the other three must equal it.

Lesson 03 teaches this file.
"""

from collections.abc import Sequence

import jax
from jax.sharding import SingleDeviceSharding

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.state import Task, TrainState
from pmapdp.steps.shared import Strategy, evaluation_sums, gradient_sums, update


def make_strategy(task: Task, devices: Sequence[jax.Device]) -> Strategy:
    """Make the strategy of a single device, the first of `devices`.

    It holds the state and the batch `[B, ...]`.
    """
    sharding = SingleDeviceSharding(devices[0])

    # Placing
    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, sharding)

    def place_batch(batch: Batch) -> Batch:
        return jax.device_put(batch, sharding)

    # The step
    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, MetricSums]:
        # One device has the whole batch, so its sums are the global ones.
        gradients, sums, model_state = gradient_sums(task, state, batch)
        return update(task, state, gradients, sums.count, model_state), sums

    # Evaluation
    def eval_step(state: TrainState, batch: Batch) -> MetricSums:
        return evaluation_sums(task, state, batch)

    # The wrapper
    train_step = jax.jit(train_step, donate_argnums=0)
    eval_step = jax.jit(eval_step)
    return Strategy(
        place_state=place_state,
        place_batch=place_batch,
        train_step=train_step,
        eval_step=eval_step,
        state_sharding=sharding,
    )
