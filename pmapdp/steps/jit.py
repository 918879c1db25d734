"""`jax.jit` with shardings: a single device's program, which the compiler splits.

Lesson 09 teaches this file.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.state import Task, TrainState
from pmapdp.steps.placing import place
from pmapdp.steps.shared import AXIS, Strategy, evaluation_sums, gradient_sums, update


def make_strategy(task: Task, devices: Sequence[jax.Device]) -> Strategy:
    """Make the strategy of N devices, which run the step of a single device.

    The step sees the whole state and a global batch `[B, ...]`, whose rows are split.
    """
    mesh = Mesh(np.array(devices), (AXIS,))
    replicated = NamedSharding(mesh, PartitionSpec())
    split = NamedSharding(mesh, PartitionSpec(AXIS))

    compute_sums: Callable[..., Any] = gradient_sums
    if task.accumulate > 1:
        compute_sums = partial(accumulated_sums, mesh=mesh, axes=(AXIS,))

    # Placing
    def place_state(state: TrainState) -> TrainState:
        return jax.device_put(state, replicated)

    def place_batch(batch: Batch) -> Batch:
        return place(batch, split)

    # The step
    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, MetricSums]:
        gradients, sums, model_state = compute_sums(task, state, batch)
        return update(task, state, gradients, sums.count, model_state), sums

    # Evaluation
    def eval_step(state: TrainState, batch: Batch) -> MetricSums:
        return evaluation_sums(task, state, batch)

    # The wrapper: XLA adds the all-reduce where the step sums over the split axis.
    # out_shardings only says where the result lies.
    train_step = jax.jit(train_step, out_shardings=replicated, donate_argnums=0)
    eval_step = jax.jit(eval_step, out_shardings=replicated)
    return Strategy(
        place_state=place_state,
        place_batch=place_batch,
        train_step=train_step,
        eval_step=eval_step,
        state_sharding=replicated,
    )


def accumulated_sums(
    task: Task, state: TrainState, batch: Batch, mesh: Mesh, axes: tuple[str, ...]
) -> tuple[Any, MetricSums, Any]:
    """Add up the `gradient_sums` of K micro-batches, and all-reduce them once.

    Left alone, XLA for CPUs would all-reduce after each micro-batch. Inside `shard_map`
    every device adds up its own K micro-batches and returns the sums as one row of
    `[N, ...]`, so that adding the rows takes a single all-reduce.

    Args:
        task: What is trained.
        state: Before the update.
        batch: The global batch, `[B, ...]`, of which each device has `[b, ...]`.
        mesh: The mesh of the devices.
        axes: The mesh axes over which the batch is split. The compiler handles the
            others.

    Returns:
        The gradients, the metric sums, and the new `model_state`.
    """

    def device_sums(state: TrainState, batch: Batch) -> tuple[Any, Any]:
        gradients, sums, model_state = gradient_sums(task, state, batch, axis_name=axes)
        return jax.tree.map(lambda x: x[None], (gradients, sums)), model_state

    on_devices = jax.shard_map(
        device_sums,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(axes)),
        out_specs=(PartitionSpec(axes), PartitionSpec()),
        axis_names=set(axes),
        check_vma=False,
    )
    rows, model_state = on_devices(state, batch)
    gradients, sums = jax.tree.map(lambda x: x.sum(0), rows)
    return gradients, sums, model_state
