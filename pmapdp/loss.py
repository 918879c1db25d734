"""Loss and metrics as sums and counts: sums over devices and steps stay exact, means of means do not.

Lessons 02, 03 and 08 teach this file. Shapes: b examples on this device (or the global batch), C classes.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from pmapdp.data.batches import Batch
from pmapdp.models.layers import Context, call

NONE: dict[str, Any] = {}


class MetricSums(NamedTuple):
    """Sums over examples; `+` of two of them, field by field, is the sum over all their examples.

    Attributes:
        loss: `[]` sum of the losses; for the cross-entropy in natural logarithms.
        correct: `[]` number of examples whose highest logit is that of their class; None where there are no classes.
        count: `[]` sum of the weights, for example the number of examples without padding. It divides the gradient: a
            loss over tokens counts tokens.
        others: further sums by name, `[]` each; their means over the count are shown beside the loss.
    """

    loss: Any
    correct: Any
    count: Any
    others: Any = NONE


def named_sums(sums: MetricSums) -> dict[str, Any]:
    """The sums by name, without those that are not there."""
    fields = {"loss": sums.loss, "correct": sums.correct, "count": sums.count, **sums.others}
    return {name: value for name, value in fields.items() if value is not None}


def cross_entropy(
    model: nnx.Module, batch: Batch, context: Context, *, label_smoothing: float = 0.0, metrics: Any = None
) -> MetricSums:
    """The loss of a classifier. A loss of your own takes and returns the same.

    Args:
        model: called as `model(batch.inputs)`, or `model(batch.inputs, context)`; returns logits `[b, C]`.
        batch: b examples; padding has weight 0.
        context: for the model's layers, and whether this is training.
        label_smoothing: share of the target spread over all classes, in training alone.
        metrics: a function of (logits, batch) that returns further sums by name, or None.
    """
    logits = call(model, batch.inputs, context)
    sums = metric_sums(logits, batch, label_smoothing if context.train else 0.0)
    return sums if metrics is None else sums._replace(others=metrics(logits, batch))


def metric_sums(logits: jax.Array, batch: Batch, label_smoothing: float = 0.0) -> MetricSums:
    """Weighted sums of `[b, C]` logits against the batch's labels; padding has weight 0."""
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    weights = batch.weights.astype(logits.dtype)
    targets = optax.smooth_labels(jax.nn.one_hot(batch.labels, logits.shape[-1], dtype=logits.dtype), label_smoothing)
    losses = optax.softmax_cross_entropy(logits, targets)
    correct = logits.argmax(-1) == batch.labels
    # One sum of [3, b], so that devices which split the batch exchange one array for all three.
    return MetricSums(*(weights * jnp.stack([losses, correct, jnp.ones_like(losses)])).sum(1))
