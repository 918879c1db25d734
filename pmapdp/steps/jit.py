"""`jax.jit` with shardings: the program of a single device; the compiler splits it. Lesson 09 teaches this file.

With `--accumulate`, or a layout that splits more than the batch, jit runs `sharding/split_step.py` instead.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.state import Task, TrainState
from pmapdp.steps.placing import fetch, place
from pmapdp.steps.shared import AXIS, Strategy, evaluation_sums, gradient_sums, update


def make_strategy(task: Task, devices: Sequence[jax.Device]) -> Strategy:
    """The step of the global batch `[B, ...]`, which is split over N devices; the state is replicated."""
    mesh = Mesh(np.array(devices), (AXIS,))
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXIS))

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, replicated)

    def place_batch(batch: Batch) -> Batch:
        return place(batch, split)

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, MetricSums]:
        gradients, sums, model_state = gradient_sums(task, state, batch)
        return update(task, state, gradients, sums.count, model_state), sums

    def eval_step(state: TrainState, batch: Batch) -> MetricSums:
        return evaluation_sums(task, state, batch)

    # The all-reduce is in the compiled program only: a sum over the split batch whose result is to be replicated
    # needs one.
    train_step = jax.jit(train_step, out_shardings=replicated, donate_argnums=0)
    eval_step = jax.jit(eval_step, out_shardings=replicated)
    return Strategy(place_state, place_batch, train_step, eval_step, fetch, replicated)
