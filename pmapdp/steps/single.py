"""One device, no splitting and no averaging: what the other three must equal. Lesson 03 teaches this file."""

import jax
from jax.sharding import SingleDeviceSharding

from pmapdp.data.batches import Batch
from pmapdp.state import Task, TrainState
from pmapdp.steps import Steps
from pmapdp.steps.shared import Body


def make_steps(task: Task, devices) -> Steps:
    """The step on the first of `devices`. State and batch `[B, ...]` lie whole on it."""
    body = Body(task)

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, devices[0])

    def place_batch(batch: Batch) -> Batch:
        return jax.device_put(batch, devices[0])

    def train_step(state: TrainState, batch: Batch):
        gradients, sums, batch_stats = body.gradient_sums(state, batch)
        return body.update(state, gradients, sums, batch_stats), sums

    def eval_step(state: TrainState, batch: Batch):
        return body.evaluation_sums(state, batch)

    return Steps(
        place_state,
        place_batch,
        jax.jit(train_step, donate_argnums=0),
        jax.jit(eval_step),
        jax.device_get,
        SingleDeviceSharding(devices[0]),
    )
