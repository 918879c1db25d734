"""Metrics as sums on the host, read without stopping the devices."""

import math
import time
from collections import deque
from collections.abc import Mapping

import jax

from pmapdp.errors import DivergedError
from pmapdp.loss import DIVISOR, MetricSums, named_sums

ACCURACIES = (
    "accuracy",
    "weighted_accuracy",
)  # without weights of the data, and with them
UPDATES_AHEAD = 2
READ_TOGETHER = 16  # updates, and not seconds, so that all processes notice a NaN after the same update


@jax.jit
def stack(all_sums: list[MetricSums]) -> MetricSums:
    """Return the metrics of `READ_TOGETHER` updates as `[updates]` each. From a GPU, one copy is faster than many."""
    return jax.tree.map(lambda *values: jax.numpy.stack(values), *all_sums)


class Meter:
    """Adds up the metrics of updates and times them, while the host runs at most two updates ahead.

    Attributes:
        sums: over all examples so far, by name, in double precision; "count" is the sum
            of their weights.
        examples: their number.
        accuracy: its name, "accuracy", or "weighted_accuracy" if the data have weights.
    """

    def __init__(
        self,
        sums: Mapping[str, float] | None = None,
        examples: int = 0,
        *,
        is_weighted: bool = False,
    ):
        self.sums, self.examples, self.accuracy = (
            dict(sums or {}),
            examples,
            ACCURACIES[is_weighted],
        )
        self.unread: deque[tuple[int, MetricSums, int]] = deque()
        self.start_clock()

    def start_clock(self) -> None:
        """Start timing, which comes after the first update because that one compiles."""
        self.started, self.seconds = time.perf_counter(), 0.0
        self.timed_updates = self.timed_examples = 0

    def add(self, step: int, sums: MetricSums, examples: int) -> None:
        """Add the metrics of update `step` over `examples` examples. The devices may still compute it.

        A `DivergedError` says that the loss of an earlier update is not finite.
        """
        self.unread.append((step, sums, examples))
        self.timed_updates += 1
        self.timed_examples += examples
        if len(self.unread) > UPDATES_AHEAD:
            jax.block_until_ready(self.unread[-1 - UPDATES_AHEAD][1])
        if (
            len(self.unread) == READ_TOGETHER
        ):  # queued now, so that reading it doesn't wait for the next updates
            self.stacked = stack([sums for _, sums, _ in self.unread])
        if len(self.unread) == READ_TOGETHER + UPDATES_AHEAD:
            self.read(READ_TOGETHER, self.stacked)
        self.seconds = time.perf_counter() - self.started

    def read(self, updates: int, stacked: MetricSums) -> None:
        """Copy the metrics of the oldest updates to the host, and add them up."""
        columns = named_sums(jax.device_get(stacked))
        for row in range(updates):
            step, _, examples = self.unread.popleft()
            for name, values in columns.items():
                self.sums[name] = self.sums.get(name, 0.0) + float(values[row])
            self.examples += examples
            if not math.isfinite(self.sums["loss"]):
                jax.block_until_ready(
                    [sums for _, sums, _ in self.unread]
                )  # other processes take part in these
                raise DivergedError(
                    f"the loss is {self.sums['loss']} at step {step}", step
                )

    def finish(self) -> None:
        """Wait for all updates, and add up what is left."""
        while self.unread:
            oldest = [sums for _, sums, _ in self.unread][:READ_TOGETHER]
            self.read(
                len(oldest), stack(oldest + oldest[-1:] * (READ_TOGETHER - len(oldest)))
            )
        self.seconds = time.perf_counter() - self.started

    @property
    def means(self) -> dict[str, float]:
        """Return the mean or ratio of each metric (NaN if its divisor is 0) and the number of examples, or {}."""
        if not self.examples:
            return {}
        means = {}
        for name, value in self.sums.items():
            if name != "count" and not name.endswith(DIVISOR):
                divisor = self.sums.get(name + DIVISOR, self.sums["count"])
                means[self.accuracy if name == "correct" else name] = (
                    value / divisor if divisor else math.nan
                )
        return means | {"examples": self.examples}

    @property
    def speed(self) -> dict[str, float | None]:
        """Return examples a second and milliseconds an update, each None if no update was timed."""
        if not self.timed_updates:
            return {"examples_per_second": None, "step_ms": None}
        step_ms = 1000 * self.seconds / self.timed_updates
        return {
            "examples_per_second": self.timed_examples / self.seconds,
            "step_ms": step_ms,
        }
