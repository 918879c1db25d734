"""What every strategy does alike: local sums, and the update once the sums are global.

Between the two stands the all-reduce, which each file of this folder does in its own way.
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax

from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums, evaluation_sums, training_sums
from pmapdp.models.layers import AxisName
from pmapdp.state import Task, TrainState


class Body:
    """The parts of a training step for one task.

    Args:
        task: what is trained.
        axis_name: the mapped axis over which the global batch is split, for batch norm, which needs sums over
            all devices in the middle of the model; None where arrays hold the global batch.
    """

    def __init__(self, task: Task, *, axis_name: AxisName = None):
        self.task, self.axis_name = task, axis_name
        # Made here and not inside a step: in a `shard_map` Flax would look for the logical names of axes in its mesh.
        self.structure = task.model_structure()

    def gradient_sums(self, state: TrainState, batch: Batch) -> tuple[Any, MetricSums, Any]:
        """Gradients of the summed loss over the examples here, their metrics, and the new batch statistics."""

        def micro_batch_sums(batch_stats, micro_batch: Batch):
            (_, (sums, batch_stats)), gradients = jax.value_and_grad(training_sums, has_aux=True)(
                state.params,
                batch_stats,
                micro_batch,
                state.step,
                task=self.task,
                structure=self.structure,
                axis_name=self.axis_name,
            )
            return batch_stats, (gradients, sums)

        if self.task.accumulate == 1:
            batch_stats, (gradients, sums) = micro_batch_sums(state.batch_stats, batch)
            return gradients, sums, batch_stats

        def accumulate(carry, micro_batch: Batch):
            batch_stats, totals = carry
            batch_stats, here = micro_batch_sums(batch_stats, micro_batch)
            return (batch_stats, jax.tree.map(jnp.add, totals, here)), None

        K = self.task.accumulate
        micro_batches = jax.tree.map(lambda x: x.reshape(K, -1, *x.shape[1:]), batch)
        first = micro_batch_sums(state.batch_stats, jax.tree.map(lambda x: x[0], micro_batches))
        rest = jax.tree.map(lambda x: x[1:], micro_batches)
        (batch_stats, (gradients, sums)), _ = lax.scan(accumulate, first, rest)
        return gradients, sums, batch_stats

    def update(
        self, state: TrainState, gradients: Any, sums: MetricSums, batch_stats: Any, global_norm: Any = optax.tree.norm
    ) -> TrainState:
        """One optimizer update, from sums over the global batch: the gradient is sum(w * g) / sum(w).

        `global_norm` takes the gradients to their length; it must be given where they are only a part of all.
        """
        gradients = jax.tree.map(lambda g: g / sums.count.astype(g.dtype), gradients)
        updates, optimizer_state = optax.with_extra_args_support(self.task.optimizer).update(
            gradients, state.optimizer_state, state.params, global_norm=global_norm
        )
        return TrainState(state.step + 1, optax.apply_updates(state.params, updates), batch_stats, optimizer_state)

    def evaluation_sums(self, state: TrainState, batch: Batch) -> MetricSums:
        """Metrics over the examples here, with the running batch statistics and without dropout."""
        return evaluation_sums(state.params, state.batch_stats, batch, structure=self.structure)
