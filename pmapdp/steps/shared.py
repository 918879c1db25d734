"""The parts that all four strategies share: sums over a device's examples, and the update from the global sums.

Between the two comes the all-reduce, which each file of this folder does in its own
way. Lesson 13 teaches this file.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from pmapdp.data.batches import Batch
from pmapdp.layers import AxisName, Context, example_keys, use_context
from pmapdp.loss import MetricSums
from pmapdp.state import Task, TrainState

AXIS = "data"  # the name of the axis over which the global batch is split


class Strategy(NamedTuple):
    """Five functions, and the sharding of the state: all that a trainer needs of a strategy."""

    place_state: Callable[[TrainState], TrainState]  # from the host to the devices
    place_batch: Callable[[Batch], Batch]
    train_step: Callable[
        [TrainState, Batch], tuple[TrainState, MetricSums]
    ]  # reuses the memory of the given state
    eval_step: Callable[[TrainState, Batch], MetricSums]
    fetch: Callable[
        [Any], Any
    ]  # from the devices to the host: one copy, without a device axis
    state_sharding: (
        Any  # one sharding for all arrays, or a pytree of them like the state
    )


def gradient_sums(
    task: Task, state: TrainState, batch: Batch, *, axis_name: AxisName = None
) -> tuple[Any, MetricSums, Any]:
    """Return gradients of the summed loss over a device's examples, the metric sums, and the new `model_state`.

    The batch is a device's share `[b, ...]`, or all of it. Batch norm needs moments
    over all devices in the middle of the model, so it's told the `axis_name` over which
    the batch is split: None if the arrays hold the global batch.
    """

    def summed_loss(
        params: Any, model_state: Any, batch: Batch
    ) -> tuple[jax.Array, Any]:
        model = task.model_with(params, model_state)
        keys = example_keys(task.seed, state.step, batch.indices)
        with use_context(
            Context(batch.weights, keys, state.step, train=True, axis_name=axis_name)
        ):
            sums = task.loss(model, batch)
        return sums.loss, (sums, task.arrays_of(model)[1])

    gradients_of = jax.grad(summed_loss, has_aux=True)

    def add(carry: tuple[Any, Any], micro_batch: Batch) -> tuple[tuple[Any, Any], None]:
        model_state, totals = carry
        gradients, (sums, model_state) = gradients_of(
            state.params, model_state, micro_batch
        )
        added = (gradients, sums)
        return (
            model_state,
            added if totals is None else jax.tree.map(jnp.add, totals, added),
        ), None

    K = task.accumulate
    micro_batches = jax.tree.map(lambda x: x.reshape(K, -1, *x.shape[1:]), batch)
    carry, _ = add(
        (state.model_state, None), jax.tree.map(lambda x: x[0], micro_batches)
    )
    if K > 1:
        # On CPUs XLA is up to 20 times slower at convolutions in a loop, so there the
        # scan is unrolled.
        on_cpu = jax.default_backend() == "cpu"
        carry, _ = lax.scan(
            add, carry, jax.tree.map(lambda x: x[1:], micro_batches), unroll=on_cpu
        )
    model_state, (gradients, sums) = carry
    return gradients, sums, model_state


def update(
    task: Task, state: TrainState, gradients: Any, count: jax.Array, model_state: Any
) -> TrainState:
    """Make one update by the gradient of the mean loss over the global batch, sum(w * g) / sum(w).

    `gradients` of the summed loss and `count`, the sum of the weights, are both added
    up over the devices, or both averaged over them.
    """
    gradients = jax.tree.map(lambda g: g / count.astype(g.dtype), gradients)
    updates, optimizer_state = task.optimizer.update(
        gradients, state.optimizer_state, state.params
    )
    return TrainState(
        state.step + 1,
        optax.apply_updates(state.params, updates),
        model_state,
        optimizer_state,
    )


def evaluation_sums(task: Task, state: TrainState, batch: Batch) -> MetricSums:
    """Return metrics over the examples of a batch, with the running batch statistics and without dropout."""
    return task.loss(task.model_with(state.params, state.model_state), batch)
