"""Find the training example that made a loss infinite or NaN."""

import contextlib
import dataclasses
import functools
from collections.abc import Iterator

import jax
import numpy as np

from pmapdp.data.batches import Batches
from pmapdp.errors import DIVERGED_ADVICE, DivergedError
from pmapdp.job import Job
from pmapdp.state import create_state
from pmapdp.steps.shared import gradient_sums

# An input this many times the median is named. Columns that nobody has scaled differ
# by less.
HUGE = 1e4


@contextlib.contextmanager
def explain_divergence(job: Job) -> Iterator[None]:
    """Add to the error of a training loss which example it may come from."""
    try:
        yield
    except DivergedError as error:
        if not error.step:
            raise
        advice = find_first_not_finite(job, error.step)
        raise DivergedError(
            f"{error.message}: {advice}", error.step, error.losses
        ) from None


def find_first_not_finite(job: Job, step: int) -> str:
    """Say which training example isn't finite, or advise another learning rate.

    It's in update `step`, or in the one before, which made its parameters. The loss of
    single examples is looked at in the first update alone, whose parameters are known.
    """
    state = create_state(job.task)
    one_by_one = dataclasses.replace(job.task, accumulate=1)
    compute = jax.jit(functools.partial(gradient_sums, one_by_one))
    batches = job.batches["train"]
    sizes: dict[int, float] = {}  # largest input of each example
    for update in range(max(step - 1, 1), step + 1):
        epoch, done = divmod(update - 1, batches.per_epoch)
        start = done * batches.batch_size
        rows = batches.order(epoch)[start : start + batches.batch_size]
        for row in rows.tolist():
            batch = Batches(batches.split, 1).read_batch(np.array([row]))
            values = {"the inputs are": batch.inputs, "the labels are": batch.labels}
            if update == 1 and not job.config.init_from:
                _, sums, _ = compute(state, batch)
                values["the first loss is"] = sums.loss
            for name, value in values.items():
                if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(value)):
                    return (
                        f"{name} not finite for training example {row}, counted from "
                        "0: look at it, model and loss"
                    )
            leaves = jax.tree.leaves(batch.inputs)
            sizes[row] = max(float(np.abs(leaf).max(initial=0)) for leaf in leaves)
    largest = max(sizes, key=lambda row: sizes[row])
    if sizes[largest] > HUGE * np.median(list(sizes.values())):
        return (
            f"the inputs of training example {largest}, counted from 0, are up to "
            f"{sizes[largest]:.3g}, far above the others' of this update: look at it"
        )
    return f"{DIVERGED_ADVICE}, and look at the training examples of this update"
