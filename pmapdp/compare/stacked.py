"""`jax.pmap` as programs of its time used it: every array has a device axis, `[N, ...]`, the state too.

It has the functions of a file in `steps/`. No trainer runs it: it's here for the
comparison.
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
from pmapdp.steps.shared import AXIS, Strategy, evaluation_sums, gradient_sums, update

STACKED = "pmap, stacked"  # a name next to the names in `steps.STRATEGIES`


def make_strategy(task: Task, devices: Sequence[jax.Device]) -> Strategy:
    """Make the step of one of N devices: it sees `[...]` of a state `[N, ...]`, and `[b, ...]` of `[N, b, ...]`."""
    N = len(devices)
    split = NamedSharding(Mesh(np.array(devices), (AXIS,)), PartitionSpec(AXIS))

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(jax.tree.map(lambda x: np.stack([x] * N), state), split)

    def place_batch(batch: Batch) -> Batch:
        return jax.device_put(
            jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch), split
        )

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, MetricSums]:
        gradients, sums, model_state = gradient_sums(task, state, batch, axis_name=AXIS)
        gradients, count = lax.pmean((gradients, sums.count), AXIS)
        return update(task, state, gradients, count, model_state), lax.psum(sums, AXIS)

    def eval_step(state: TrainState, batch: Batch) -> MetricSums:
        return lax.psum(evaluation_sums(task, state, batch), AXIS)

    def fetch(tree: Any) -> Any:
        # Only the first copy: x[0] would send it to every device first.
        return jax.device_get(
            jax.tree.map(lambda x: x.addressable_shards[0].data.squeeze(0), tree)
        )

    train_step = jax.pmap(train_step, axis_name=AXIS, devices=devices, donate_argnums=0)
    eval_step = jax.pmap(eval_step, axis_name=AXIS, devices=devices)
    return Strategy(
        place_state=place_state,
        place_batch=place_batch,
        train_step=train_step,
        eval_step=eval_step,
        fetch=fetch,
        state_sharding=split,
    )
