"""`jax.jit` with shardings: the program of a single device; the compiler splits it. Lesson 09 teaches this file."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.state import Task, TrainState
from pmapdp.steps.placing import fetch, place
from pmapdp.steps.shared import AXIS, Body, Steps


def make_steps(task: Task, devices) -> Steps:
    """The step of the global batch `[B, ...]`, which is split over N devices; each holds the whole state."""
    body = Body(task)
    mesh = Mesh(np.array(devices), (AXIS,))
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXIS))

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, replicated)

    def place_batch(batch: Batch) -> Batch:
        return place(batch, split)

    def train_step(state: TrainState, batch: Batch):
        gradients, sums, batch_stats = body.gradient_sums(state, batch)
        return body.update(state, gradients, sums.count, batch_stats), sums

    def eval_step(state: TrainState, batch: Batch):
        return body.evaluation_sums(state, batch)

    # The all-reduce is in the compiled program only: a sum over the split batch whose result is to be replicated
    # needs one.
    train_step = jax.jit(train_step, out_shardings=replicated, donate_argnums=0)
    eval_step = jax.jit(eval_step, out_shardings=replicated)
    return Steps(place_state, place_batch, train_step, eval_step, fetch, replicated)
