"""Metrics as sums on the host, read without stopping the devices."""

import math
import operator
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from pmapdp.errors import DivergedError
from pmapdp.loss import DIVISOR, MetricSums, named_sums

# Names of the accuracy without weights of the data, and with them.
ACCURACIES = ("accuracy", "weighted_accuracy")
UPDATES_AHEAD = 2  # that the host may queue; more batches would fill device memory
# The host reads the metrics of this many updates at once, because a GPU copies one
# array faster than many small ones. It counts updates and not seconds, so that all
# processes notice a NaN after the same update. It must be more than UPDATES_AHEAD.
READ_TOGETHER = 16
LAST_LOSSES = 100  # more than are read together


class PendingMetrics(NamedTuple):
    """The metrics of an update, which the devices may still compute."""

    step: int
    sums: MetricSums
    examples: int


@jax.jit
def stack_sums(sums: list[MetricSums]) -> MetricSums:
    """Return the metrics of several updates as `[updates]` each."""
    return jax.tree.map(lambda *values: jnp.stack(values), *sums)


class Meter:
    """Adds up the metrics of updates and times them.

    It lets the host run at most two updates ahead of the devices.

    Attributes:
        sums: Sums over all examples so far, by name, in double precision. "count" is
            the sum of the weights.
        examples: The number of examples so far.
        accuracy_name: "accuracy", or "weighted_accuracy" if the data have weights.
        losses: (step, mean loss) of the last updates that were read.
        seconds: The time from the start of the clock to the last update.
    """

    def __init__(
        self,
        sums: Mapping[str, float] | None = None,
        examples: int = 0,
        *,
        is_weighted: bool = False,
    ):
        self.sums = dict(sums or {})
        self.examples = examples
        self.accuracy_name = ACCURACIES[1] if is_weighted else ACCURACIES[0]
        self.losses: deque[tuple[int, float]] = deque(maxlen=LAST_LOSSES)
        self.pending: list[PendingMetrics] = []  # not read yet, oldest first
        # The sums of the oldest READ_TOGETHER pending updates, in one array each.
        self.stack: Any = None
        self.start_clock()

    def start_clock(self) -> None:
        """Start timing anew.

        Call it after the first update, because compiling would count as its time.
        """
        self.started = time.perf_counter()
        self.seconds = 0.0
        self.timed_updates = 0
        self.timed_examples = 0

    def add(self, step: int, sums: MetricSums, examples: int) -> None:
        """Add the metrics of update `step` over `examples` examples.

        A `DivergedError` says that the loss of an earlier update is not finite.
        """
        # The sums are arrays that may not be computed yet. Reading them now would stop
        # the host until they are.
        self.pending.append(PendingMetrics(step, sums, examples))
        self.timed_updates += 1
        self.timed_examples += examples
        if len(self.pending) > UPDATES_AHEAD:
            jax.block_until_ready(self.pending[-1 - UPDATES_AHEAD].sums)
        # A stack is read some updates late, so that the devices stay busy. If the host
        # read it at once, it would wait until they have no work left.
        if len(self.pending) == READ_TOGETHER:
            self.stack = stack_sums([update.sums for update in self.pending])
        elif len(self.pending) == READ_TOGETHER + UPDATES_AHEAD:
            columns = jax.device_get(self.stack)
            self.add_up(
                [
                    jax.tree.map(operator.itemgetter(row), columns)
                    for row in range(READ_TOGETHER)
                ]
            )
        self.seconds = time.perf_counter() - self.started

    def add_up(self, rows: Sequence[MetricSums]) -> None:
        """Add up the sums of the oldest pending updates, which are on the host."""
        updates = self.pending[: len(rows)]
        self.pending = self.pending[len(rows) :]
        for update, row in zip(updates, rows, strict=True):
            for name, value in named_sums(row).items():
                self.sums[name] = self.sums.get(name, 0.0) + float(value)
            self.examples += update.examples
            # Weights may add up to 0 in a batch, which then has no mean.
            mean_loss = math.nan
            if row.count:
                mean_loss = float(row.loss) / float(row.count)
            self.losses.append((update.step, mean_loss))
            loss = self.sums["loss"]
            if not math.isfinite(loss):
                # Other processes take part in the updates that are still running.
                jax.block_until_ready([update.sums for update in self.pending])
                raise DivergedError(
                    f"the loss is {loss} at step {update.step}",
                    update.step,
                    self.losses,
                )

    def finish(self) -> None:
        """Wait for all updates, and add up what is left."""
        self.add_up(jax.device_get([update.sums for update in self.pending]))
        self.seconds = time.perf_counter() - self.started

    @property
    def means(self) -> dict[str, float]:
        """Return each metric's mean or ratio by name, and "examples", their number.

        A metric whose divisor is 0 is NaN. Before the first update was read, the
        dictionary is empty.
        """
        if not self.examples:
            return {}
        means: dict[str, float] = {}
        for name, value in self.sums.items():
            if name == "count" or name.endswith(DIVISOR):
                continue
            # A metric may have a divisor of its own, tokens for example.
            divisor = self.sums.get(name + DIVISOR, self.sums["count"])
            if name == "correct":
                name = self.accuracy_name
            means[name] = math.nan
            if divisor:
                means[name] = value / divisor
        means["examples"] = self.examples
        return means

    @property
    def speed(self) -> dict[str, float | None]:
        """Return examples per second and milliseconds per update.

        Both are None if no update was timed.
        """
        if not self.timed_updates:
            return {"examples_per_second": None, "step_ms": None}
        return {
            "examples_per_second": self.timed_examples / self.seconds,
            "step_ms": 1000 * self.seconds / self.timed_updates,
        }
