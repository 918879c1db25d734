"""`jax.shard_map`: pmap's program per device on jit's sharded arrays. Lesson 09 teaches this file."""

from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.cpu.packing import packed
from pmapdp.data.batches import Batch
from pmapdp.state import Task, TrainState
from pmapdp.steps import Steps
from pmapdp.steps.placing import fetch, place
from pmapdp.steps.shared import Body

AXIS = "data"


def make_steps(task: Task, devices) -> Steps:
    """The step of one of N devices: it sees the whole state and `[b, ...]` of a batch `[B, ...]`."""
    body = Body(task, axis_name=AXIS)
    mesh = Mesh(np.array(devices), (AXIS,))
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXIS))

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, replicated)

    def place_batch(batch: Batch) -> Batch:
        return place(batch, split)

    def train_step(state: TrainState, batch: Batch):
        gradients, sums, batch_stats = body.gradient_sums(state, batch)
        gradients, sums = packed(lax.psum)((gradients, sums), AXIS)  # the all-reduce
        return body.update(state, gradients, sums, batch_stats), sums

    def eval_step(state: TrainState, batch: Batch):
        return packed(lax.psum)(body.evaluation_sums(state, batch), AXIS)

    # With check_vma=True (the default) JAX would itself sum the gradient of a replicated parameter over the
    # devices, and the psum above would multiply it by N once more.
    axes: dict[str, Any] = {
        "mesh": mesh,
        "in_specs": (PartitionSpec(), PartitionSpec(AXIS)),
        "out_specs": PartitionSpec(),
    }
    return Steps(
        place_state,
        place_batch,
        jax.jit(jax.shard_map(train_step, **axes, check_vma=False), donate_argnums=0),
        jax.jit(jax.shard_map(eval_step, **axes, check_vma=False)),
        fetch,
        replicated,
    )
