"""Loss and metrics as sums and counts.

Sums over devices and steps stay exact, and means of means don't. Lessons 02, 03 and 08
teach this file. Shapes: b examples on this device or in the global batch, C classes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from pmapdp.data.batches import Batch
from pmapdp.layers import current_context

NO_METRICS: dict[str, Any] = {}
# The end of a name: the pair of sums "perplexity" has its second sum under
# "perplexity (divisor)". No metric of yours is called so by chance.
DIVISOR = " (divisor)"


class MetricSums(NamedTuple):
    """A loss returns these sums over a batch, each a number `[]`.

    Added field by field, the sums of two batches are the sums over all examples. Means
    are not, which is why a loss returns sums.

    Attributes:
        loss: The sum of the weighted losses. The cross-entropy is in nats.
        correct: The sum of the weights of the correct answers. None if there are no
            classes.
        count: The sum of the weights, which is the number of examples if each weighs 1.
            The gradients are divided by it.
        metrics: More metrics by name. A sum is shown as sum / count, and a pair of sums
            as first / second.

    Example:
        def loss(model, batch):
            logits = model(batch.inputs)
            losses = optax.losses.multiclass_hinge_loss(logits, batch.labels)
            correct = logits.argmax(1) == batch.labels
            weights = batch.weights  # 0 for padding
            return MetricSums(weights @ losses, weights @ correct, weights.sum())
    """

    loss: Any
    correct: Any
    count: Any
    metrics: Any = NO_METRICS


def named_sums(sums: MetricSums) -> dict[str, Any]:
    """Return the sums by name, without those that are None.

    The second sum of a pair is called `NAME (divisor)`.
    """
    named = {"loss": sums.loss, "correct": sums.correct, "count": sums.count}
    for name, value in sums.metrics.items():
        if isinstance(value, tuple):
            named[name], named[name + DIVISOR] = value
        else:
            named[name] = value
    return {name: value for name, value in named.items() if value is not None}


def cross_entropy(
    model: Any,
    batch: Batch,
    *,
    label_smoothing: float = 0.0,
    metrics: Callable[..., dict[str, Any]] | None = None,
) -> MetricSums:
    """Return the sums of a classifier's loss. Your own loss takes and returns the same.

    Args:
        model: Returns logits `[b, C]` of `model(batch.inputs)`.
        batch: `[b, ...]`, in which padding has weight 0.
        label_smoothing: Share of the target spread over all classes, only in training.
        metrics: A function of (logits, batch) that returns further sums by name, or
            None.
    """
    logits = model(batch.inputs)
    # A test loss with smoothing couldn't be compared with anybody's.
    if not current_context().train:
        label_smoothing = 0.0
    sums = metric_sums(logits, batch, label_smoothing)
    if metrics is not None:
        sums = sums._replace(metrics=metrics(logits, batch))
    return sums


def metric_sums(
    logits: jax.Array, batch: Batch, label_smoothing: float = 0.0
) -> MetricSums:
    """Return the weighted sums of `[b, C]` logits against the batch's labels."""
    # A sum over a batch in bfloat16 would keep three digits.
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    weights = batch.weights.astype(logits.dtype)
    targets = jax.nn.one_hot(batch.labels, logits.shape[-1], dtype=logits.dtype)
    targets = optax.smooth_labels(targets, label_smoothing)
    losses = optax.softmax_cross_entropy(logits, targets)
    correct = logits.argmax(-1) == batch.labels  # of equal logits the first wins
    # One sum of [3, b], so that devices which split the batch exchange one array for
    # all three.
    rows = jnp.stack([losses, correct, jnp.ones_like(losses)])
    loss, correct, count = (weights * rows).sum(1)
    return MetricSums(loss, correct, count)
