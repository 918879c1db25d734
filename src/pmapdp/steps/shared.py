"""What all four strategies share: sums over the examples here, and the update from sums over the global batch.

Between the two stands the all-reduce, which each file of this folder does in its own way.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.models.layers import AxisName, Context, example_keys
from pmapdp.state import Task, TrainState

AXIS = "data"  # the name of the axis over which the global batch is split


class Steps(NamedTuple):
    """What a trainer needs of a strategy.

    Attributes:
        place_state: host pytree to devices.
        place_batch: host `Batch` to devices.
        train_step: (state, batch) to (state, `MetricSums`), one update; the given state's memory is reused.
        eval_step: (state, batch) to `MetricSums`.
        fetch: devices back to the host, one copy, no device axis.
        state_sharding: where the state's arrays are placed: one sharding for all, or a pytree of them like the state.
    """

    place_state: Callable[[TrainState], TrainState]
    place_batch: Callable[[Batch], Batch]
    train_step: Callable[[TrainState, Batch], tuple[TrainState, MetricSums]]
    eval_step: Callable[[TrainState, Batch], MetricSums]
    fetch: Callable[[Any], Any]
    state_sharding: Any


class Body:
    """The parts of a training step for one task.

    Args:
        task: what is trained.
        axis_name: the mapped axis over which the global batch is split, for batch norm, which needs moments over
            all devices in the middle of the model; None where arrays hold the global batch.
    """

    def __init__(self, task: Task, *, axis_name: AxisName = None):
        self.task, self.axis_name = task, axis_name
        # Made here and not inside a step: in a `shard_map` Flax would look for the logical names of axes in its mesh.
        self.structure = task.model_structure()

    def loss(
        self, params: Any, batch_stats: Any, batch: Batch, step: jax.Array
    ) -> tuple[jax.Array, tuple[MetricSums, Any]]:
        """Forward pass in training: the loss summed over the examples here, then (metrics, new batch statistics)."""
        # Batch norm assigns to its variables, so the trace needs fresh ones: copy=True.
        model = nnx.merge(self.structure, params, batch_stats, copy=True)
        keys = example_keys(self.task.seed, step, batch.indices)
        context = Context(batch.weights, keys, step, train=True, axis_name=self.axis_name)
        sums = self.task.loss(model, batch, context)
        return sums.loss, (sums, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)))

    def gradient_sums(self, state: TrainState, batch: Batch) -> tuple[Any, MetricSums, Any]:
        """Gradients of the summed loss over the examples here, their metrics, and the new batch statistics."""
        gradients_of = jax.value_and_grad(self.task.transform(self.loss), has_aux=True)

        def micro_batch_sums(batch_stats: Any, micro_batch: Batch):
            (_, (sums, batch_stats)), gradients = gradients_of(state.params, batch_stats, micro_batch, state.step)
            return batch_stats, (gradients, sums)

        def accumulate(carry, micro_batch: Batch):
            batch_stats, totals = carry
            batch_stats, here = micro_batch_sums(batch_stats, micro_batch)
            return (batch_stats, jax.tree.map(jnp.add, totals, here)), None

        K = self.task.accumulate
        micro_batches = jax.tree.map(lambda x: x.reshape(K, -1, *x.shape[1:]), batch)
        carry = micro_batch_sums(state.batch_stats, jax.tree.map(lambda x: x[0], micro_batches))
        if K > 1:
            carry, _ = lax.scan(accumulate, carry, jax.tree.map(lambda x: x[1:], micro_batches))
        batch_stats, (gradients, sums) = carry
        return gradients, sums, batch_stats

    def update(self, state: TrainState, gradients: Any, count: jax.Array, batch_stats: Any) -> TrainState:
        """One update from the gradients of the global batch's loss: their sum over the number of examples, or the mean
        over devices of both: sum(w * g) / sum(w)."""
        gradients = jax.tree.map(lambda g: g / count.astype(g.dtype), gradients)
        updates, optimizer_state = self.task.optimizer.update(gradients, state.optimizer_state, state.params)
        return TrainState(state.step + 1, optax.apply_updates(state.params, updates), batch_stats, optimizer_state)

    def evaluation_sums(self, state: TrainState, batch: Batch) -> MetricSums:
        """Metrics over the examples here, with the running batch statistics and without dropout."""
        model = nnx.merge(self.structure, state.params, state.batch_stats)
        return self.task.loss(model, batch, Context(batch.weights))
