"""`jax.pmap`: the program says what one device does, and where the devices talk. Lesson 06 teaches this file."""

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
    """The step of one of N devices: it sees the whole state and `[b, ...]` of a batch `[N, b, ...]`."""
    body = Body(task, axis_name=AXIS)
    mesh = Mesh(np.array(devices), (AXIS,))
    here = mesh.local_mesh.size
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec(AXIS))

    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, replicated)

    def place_batch(batch: Batch) -> Batch:
        per_device = jax.tree.map(lambda x: x.reshape(here, -1, *x.shape[1:]), batch)
        return place(per_device, split)

    def train_step(state: TrainState, batch: Batch):
        gradients, sums, batch_stats = body.gradient_sums(state, batch)
        gradients, sums = packed(lax.psum)((gradients, sums), AXIS)  # the all-reduce
        return body.update(state, gradients, sums, batch_stats), sums

    def eval_step(state: TrainState, batch: Batch):
        return packed(lax.psum)(body.evaluation_sums(state, batch), AXIS)

    # The state goes in and out whole (axis None), so it has no device axis. That what comes out is the same on
    # all devices is the program's promise: pmap does not check it.
    axes: dict[str, Any] = {"axis_name": AXIS, "in_axes": (None, 0), "out_axes": None, "devices": devices}
    return Steps(
        place_state,
        place_batch,
        jax.pmap(train_step, **axes, donate_argnums=0),
        jax.pmap(eval_step, **axes),
        fetch,
        replicated,
    )
