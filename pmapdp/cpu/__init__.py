"""What `--fast-cpu` adds: a loss whose convolutions are computed in ways that are faster on CPUs.

`fast(task)` is the entrance. Nothing here is used without the flag. With it a run computes another program than the one
that the files of `steps/` show, with the same results up to rounding.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from flax import nnx

from pmapdp.cpu.convolution import faster
from pmapdp.data.batches import Batch
from pmapdp.loss import MetricSums
from pmapdp.models.layers import Context
from pmapdp.state import Task


def fast(task: Task) -> Task:
    """`task` with faster convolutions, in training and in evaluation."""
    return dataclasses.replace(task, loss=functools.partial(fast_loss, task.loss))


def fast_loss(loss: Callable[..., MetricSums], model: nnx.Module, batch: Batch, context: Context) -> MetricSums:
    """What `loss` returns. The model's variables change as under `loss`."""
    structure, arrays = nnx.split(model)

    def pure(arrays: Any, batch: Batch, context: Context) -> tuple[MetricSums, Any]:
        model = nnx.merge(structure, arrays, copy=True)
        with context.entered():
            return loss(model, batch, context), nnx.split(model)[1]

    sums, arrays = faster(pure)(arrays, batch, context)
    nnx.update(model, arrays)
    return sums
