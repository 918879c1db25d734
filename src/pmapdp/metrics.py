"""Results of a run: sums on the host, read back without stopping the devices."""

import math
import time
from collections import deque
from dataclasses import dataclass

import jax
import numpy as np

from pmapdp.errors import DivergedError
from pmapdp.loss import MetricSums

DISPATCHES_BEHIND = 2


@dataclass(frozen=True)
class Totals:
    """Sums over examples on the host, in double precision."""

    loss: float = 0.0
    correct: float = 0.0
    count: int = 0

    def add(self, sums: MetricSums) -> "Totals":
        """The sums over these examples and those."""
        return Totals(self.loss + float(sums.loss), self.correct + float(sums.correct), self.count + int(sums.count))

    @property
    def mean_loss(self) -> float:
        """Mean cross-entropy of the examples."""
        return self.loss / self.count

    @property
    def accuracy(self) -> float:
        """Share of the examples that are classified right, from 0 to 1."""
        return self.correct / self.count


class Meter:
    """Adds up the metrics of steps and times them. Reads metrics a few dispatches late, so that the devices
    never wait for the host; this also bounds how far the host can run ahead of them.
    """

    def __init__(self, totals: Totals = Totals()):
        self.totals = totals
        self.waiting: deque[tuple[int, int, MetricSums]] = deque()
        self.steps = self.examples = 0
        self.clock, self.seconds = time.perf_counter(), 0.0

    def add(self, step: int, sums: MetricSums, examples: int = 0, count: int = 1) -> None:
        """Take the metrics of updates that may still be computed.

        Args:
            step: number of the last of them.
            sums: of each update, `[count or more]`, or `[]` where it is one.
            examples: number of examples in all of them.
            count: number of updates.

        Raises:
            DivergedError: the loss of an earlier step is not finite.
        """
        self.waiting.append((step, count, sums))
        self.steps, self.examples = self.steps + count, self.examples + examples
        if len(self.waiting) > DISPATCHES_BEHIND:
            self.read()
        self.seconds = time.perf_counter() - self.clock

    def restart_clock(self) -> float:
        """Wait for all steps, leave them out of the timing, and return the seconds they took."""
        self.finish()
        seconds, self.clock, self.steps, self.examples = self.seconds, time.perf_counter(), 0, 0
        return seconds

    @property
    def examples_per_second(self) -> float | None:
        """Speed since the clock was last restarted; None where no step was timed."""
        return self.examples / self.seconds if self.steps else None

    @property
    def step_ms(self) -> float | None:
        """Milliseconds a step since the clock was last restarted; None where no step was timed."""
        return 1000 * self.seconds / self.steps if self.steps else None

    def read(self) -> None:
        """Wait for the oldest updates that are not read yet and add them."""
        last, count, sums = self.waiting.popleft()
        rows = zip(*(np.atleast_1d(field)[:count] for field in jax.device_get(sums)), strict=True)
        for step, row in enumerate(rows, start=last - count + 1):
            self.totals = self.totals.add(MetricSums(*row))
            if not math.isfinite(self.totals.loss):
                raise DivergedError(
                    f"the loss is {self.totals.loss} at step {step}: try a lower --learning-rate, "
                    "--warmup-steps 100, or --clip-norm 1",
                    step,
                )

    def finish(self) -> Totals:
        """Wait for all steps; the sums over them."""
        while self.waiting:
            self.read()
        self.seconds = time.perf_counter() - self.clock
        return self.totals
