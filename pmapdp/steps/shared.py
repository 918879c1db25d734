"""The parts that all four strategies share: gradient sums and the update.

A step has three parts, in this order:

    gradient_sums    on each device: sum(w g) and sum(w) over its own examples
    the all-reduce   adds both up over the devices, in each file's own way
    update           divides one by the other, and asks the optimizer

Here w is the weight of an example, 0 for padding, and g the gradient of its loss.
Lesson 13 teaches this file.
"""

import dataclasses
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
    """All that a trainer needs of a strategy.

    Attributes:
        place_state: Brings a state from the host to the devices.
        place_batch: Brings a batch from the host to the devices.
        train_step: Makes an update. It reuses the memory of the state that it gets.
        eval_step: Returns the metrics of a batch.
        state_sharding: One sharding for all arrays, or a pytree of them like the state.
    """

    place_state: Callable[[TrainState], TrainState]
    place_batch: Callable[[Batch], Batch]
    train_step: Callable[[TrainState, Batch], tuple[TrainState, MetricSums]]
    eval_step: Callable[[TrainState, Batch], MetricSums]
    state_sharding: Any


def gradient_sums(
    task: Task, state: TrainState, batch: Batch, *, axis_name: AxisName = None
) -> tuple[Any, MetricSums, Any]:
    """Compute the gradients of the summed loss over a device's examples.

    Args:
        task: What is trained.
        state: Before the update.
        batch: A device's part, `[b, ...]`, or all of it, `[B, ...]`.
        axis_name: The axis over which the batch is split, because batch norm needs
            moments over all devices in the middle of the model. None: the arrays hold
            the global batch.

    Returns:
        The gradients, the metric sums, and the new `model_state`.
    """
    if task.accumulate > 1:  # the rows are K micro-batches
        return add_micro_batches(task, state, batch, axis_name)

    def summed_loss(params: Any) -> Any:
        model = task.merge_arrays(params, state.model_state)
        with use_context(training_context(task, state.step, batch, axis_name)):
            sums = task.loss_sums(model, batch)
        _, model_state = task.split_arrays(model)
        # The sum and not the mean, because gradients of sums add up over devices.
        return sums.loss, (sums, model_state)

    gradients_of = jax.grad(summed_loss, has_aux=True)
    gradients, (sums, model_state) = gradients_of(state.params)
    return gradients, sums, model_state


def training_context(
    task: Task, step: jax.Array, batch: Batch, axis_name: AxisName
) -> Context:
    """Return the context for a training step, which the layers look up."""
    keys = example_keys(task.seed, step, batch.indices)
    return Context(batch.weights, keys, step, train=True, axis_name=axis_name)


def add_micro_batches(
    task: Task, state: TrainState, batch: Batch, axis_name: AxisName
) -> tuple[Any, MetricSums, Any]:
    """Add up the `gradient_sums` of K micro-batches, one after the other.

    Each starts from the `model_state` that the one before has left.

    Args:
        task: What is trained. K is its `accumulate`.
        state: Before the update.
        batch: A device's part, `[b, ...]`, whose b = K m rows are the micro-batches.
        axis_name: As in `gradient_sums`.

    Returns:
        The gradients, the metric sums, and the new `model_state`.
    """
    K = task.accumulate
    micro_batches = jax.tree.map(lambda x: x.reshape(K, -1, *x.shape[1:]), batch)
    micro_task = dataclasses.replace(task, accumulate=1)

    def sums_of(model_state: Any, micro_batch: Batch) -> Any:
        before = dataclasses.replace(state, model_state=model_state)
        return gradient_sums(micro_task, before, micro_batch, axis_name=axis_name)

    def add_next(totals: Any, micro_batch: Batch) -> tuple[Any, None]:
        gradients, sums, model_state = totals
        more_gradients, more_sums, model_state = sums_of(model_state, micro_batch)
        gradients = jax.tree.map(jnp.add, gradients, more_gradients)
        sums = jax.tree.map(jnp.add, sums, more_sums)
        return (gradients, sums, model_state), None

    # The totals start with the first micro-batch, so they have its types.
    first = jax.tree.map(lambda x: x[0], micro_batches)
    rest = jax.tree.map(lambda x: x[1:], micro_batches)
    totals = sums_of(state.model_state, first)
    # On CPUs XLA is up to 20 times slower at convolutions in a loop, so there the scan
    # is unrolled if the model has any, although that saves little memory. The text of
    # the program shows them at any depth, and in a model of yours, too.
    unroll = False
    if jax.default_backend() == "cpu":
        jaxpr = jax.make_jaxpr(sums_of)(state.model_state, first)
        unroll = "conv_general_dilated" in str(jaxpr)
    totals, _ = lax.scan(add_next, totals, rest, unroll=unroll)
    return totals


def update(
    task: Task, state: TrainState, gradients: Any, count: jax.Array, model_state: Any
) -> TrainState:
    """Update the state by the gradient of the mean loss, sum(w g) / sum(w).

    Args:
        task: What is trained.
        state: Before the update.
        gradients: The gradient sum of the global batch, sum(w g).
        count: The sum of its weights, sum(w). If both sums are divided by the number of
            devices, as `lax.pmean` does, the update is the same.
        model_state: After the update.

    Returns:
        The state after the update.
    """
    # The one division: from here on it's the mean over the global batch.
    gradients = jax.tree.map(lambda g: g / count.astype(g.dtype), gradients)
    updates, optimizer_state = task.optimizer.update(
        gradients, state.optimizer_state, state.params
    )
    params = optax.apply_updates(state.params, updates)
    return TrainState(state.step + 1, params, model_state, optimizer_state)


def evaluation_sums(task: Task, state: TrainState, batch: Batch) -> MetricSums:
    """Return the metrics of a batch, with running batch statistics and no dropout."""
    return task.loss_sums(task.merge_arrays(state.params, state.model_state), batch)
