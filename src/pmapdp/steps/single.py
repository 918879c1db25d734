"""One device, no splitting and no averaging: what the other three must equal. Lesson 03 teaches this file."""

import jax
from jax.sharding import SingleDeviceSharding

from pmapdp.data.batches import Batch
from pmapdp.state import Task, TrainState
from pmapdp.steps.shared import Body, Steps


def make_steps(task: Task, devices) -> Steps:
    """The step on the first of `devices`, which holds the state and the whole batch `[B, ...]`."""
    body = Body(task)
    here = SingleDeviceSharding(devices[0])

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, here)

    def place_batch(batch: Batch) -> Batch:
        return jax.device_put(batch, here)

    def train_step(state: TrainState, batch: Batch):
        gradients, sums, batch_stats = body.gradient_sums(state, batch)
        return body.update(state, gradients, sums.count, batch_stats), sums

    def eval_step(state: TrainState, batch: Batch):
        return body.evaluation_sums(state, batch)

    train_step = jax.jit(train_step, donate_argnums=0)
    eval_step = jax.jit(eval_step)
    return Steps(place_state, place_batch, train_step, eval_step, jax.device_get, here)
