"""`jax.shard_map`: pmap's program per device, on jit's sharded arrays.

Lesson 10 teaches this file.
"""

from collections.abc import Sequence
from typing import Any

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

    The step sees the whole state and `[b, ...]` of a batch `[B, ...]`, B = N b.
    """
    mesh = Mesh(np.array(devices), (AXIS,))
    replicated = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec(AXIS))

    # Placing
    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, replicated)

    def place_batch(batch: Batch) -> Batch:
        return place(batch, split)

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

    # The wrapper: with check_vma=True (the default) JAX itself sums the gradient of a
    # replicated parameter over the devices, and the pmean above would leave a gradient
    # N times too large. `lax.pcast(params, AXIS, to="varying")` would avoid it, but
    # then JAX refuses nnx.RNN and every other scan whose carry starts as a constant.
    def map_over_devices(step: Any) -> Any:
        return jax.shard_map(
            step,
            mesh=mesh,
            in_specs=(PartitionSpec(), PartitionSpec(AXIS)),
            out_specs=PartitionSpec(),
            check_vma=False,
        )

    train_step = jax.jit(map_over_devices(train_step), donate_argnums=0)
    eval_step = jax.jit(map_over_devices(eval_step))
    return Strategy(
        place_state=place_state,
        place_batch=place_batch,
        train_step=train_step,
        eval_step=eval_step,
        state_sharding=replicated,
    )
