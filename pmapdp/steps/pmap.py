"""`jax.pmap`: one program per device, and an all-reduce by the name of the axis.

Lessons 04 and 05 teach this file.
"""

from collections.abc import Sequence

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.state import Task, TrainState
from pmapdp.steps.placing import place
from pmapdp.steps.shared import AXIS, Strategy, evaluation_sums, gradient_sums, update


def make_strategy(task: Task, devices: Sequence[jax.Device]) -> Strategy:
    """Make the strategy of N devices, each of which runs the step on its own examples.

    The step sees the whole state and `[b, ...]` of a batch `[N, b, ...]`. These b
    examples are K micro-batches of m.
    """
    mesh = Mesh(np.array(devices), (AXIS,))
    replicated = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec(AXIS))

    # Placing
    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, replicated)

    def place_batch(batch: Batch) -> Batch:
        N = mesh.local_mesh.size  # the devices of this process
        shards = jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch)
        return place(shards, split)

    # The step
    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, MetricSums]:
        gradients, sums, model_state = gradient_sums(task, state, batch, axis_name=AXIS)
        # The all-reduce: devices may hold different numbers of examples, so a mean of
        # their mean gradients would be wrong. Sums and counts are averaged, and
        # `update` divides one by the other: the whole batch's sum over its count.
        gradients, count = lax.pmean((gradients, sums.count), AXIS)
        return update(task, state, gradients, count, model_state), lax.psum(sums, AXIS)

    # Evaluation
    def eval_step(state: TrainState, batch: Batch) -> MetricSums:
        return lax.psum(evaluation_sums(task, state, batch), AXIS)

    # The wrapper: the state goes in and out replicated (axis None), so it has no device
    # axis. pmap doesn't check that all devices return the same: that is up to the step.
    train_step = jax.pmap(
        train_step,
        AXIS,
        in_axes=(None, 0),
        out_axes=None,
        devices=devices,
        donate_argnums=0,
    )
    eval_step = jax.pmap(
        eval_step, AXIS, in_axes=(None, 0), out_axes=None, devices=devices
    )
    return Strategy(
        place_state=place_state,
        place_batch=place_batch,
        train_step=train_step,
        eval_step=eval_step,
        state_sharding=replicated,
    )
