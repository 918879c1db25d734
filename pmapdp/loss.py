"""Loss and metrics as sums and counts: sums over devices and steps stay exact, means of means do not.

Shapes: b examples on this device (or the whole batch), C classes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from pmapdp.data.batches import Batch
from pmapdp.models.layers import AxisName, Context
from pmapdp.state import Task


class MetricSums(NamedTuple):
    """Sums over examples; `+` of two of them, field by field, is the sum over all their examples.

    Attributes:
        loss: `[]` sum of the cross-entropies, natural logarithm.
        correct: `[]` number of examples whose highest logit is that of their class.
        count: `[]` number of examples, without padding.
    """

    loss: Any
    correct: Any
    count: Any


def metric_sums(logits: jax.Array, batch: Batch, label_smoothing: float = 0.0) -> MetricSums:
    """Weighted sums of `[b, C]` logits against the batch's labels; padding has weight 0."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    weights = batch.weights.astype(logits.dtype)
    targets = optax.smooth_labels(jax.nn.one_hot(batch.labels, logits.shape[-1], dtype=logits.dtype), label_smoothing)
    losses = optax.softmax_cross_entropy(logits, targets)
    correct = (logits.argmax(-1) == batch.labels).astype(logits.dtype)
    # One sum of three rows: where the compiler splits the batch, it puts an all-reduce behind each sum.
    return MetricSums(*(weights * jnp.stack([losses, correct, jnp.ones_like(losses)])).sum(1))


def example_keys(seed: int, step: jax.Array, indices: jax.Array) -> jax.Array:
    """`[b]` random keys that depend on the seed, the update and the example, and not on the device."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)


def training_sums(
    params,
    batch_stats,
    batch: Batch,
    step: jax.Array,
    *,
    task: Task,
    structure: nnx.GraphDef,
    axis_name: AxisName,
) -> tuple[jax.Array, tuple[MetricSums, Any]]:
    """Forward pass in training: the loss summed over the examples here, then (metrics, new batch statistics)."""
    # Batch norm assigns to its variables, so the trace needs fresh ones: copy=True.
    model = nnx.merge(structure, params, batch_stats, copy=True)
    keys = example_keys(task.seed, step, batch.indices)
    context = Context(batch.weights, keys, train=True, axis_name=axis_name, count=batch.weights.sum())
    logits = model(batch.inputs, context)
    sums = metric_sums(logits, batch, task.label_smoothing)
    return sums.loss, (sums, nnx.to_pure_dict(nnx.state(model, nnx.BatchStat)))


def evaluation_sums(params, batch_stats, batch: Batch, *, structure: nnx.GraphDef) -> MetricSums:
    """Forward pass in evaluation: metrics summed over the examples here (without label smoothing)."""
    logits = nnx.merge(structure, params, batch_stats)(batch.inputs)
    return metric_sums(logits, batch)
