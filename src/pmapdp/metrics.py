"""Results of a run: sums on the host, read back without stopping the devices. Lesson 14 teaches this file."""

import math
import time
from collections import deque
from dataclasses import dataclass, field

import jax

from pmapdp.errors import DivergedError
from pmapdp.loss import MetricSums

UPDATES_BEHIND = 2


@dataclass(frozen=True)
class Totals:
    """Sums over examples on the host, in double precision.

    Attributes:
        loss: sum of the losses.
        count: sum of the weights.
        examples: number of examples.
        others: further sums by name, among them `accuracy`, the number of examples that are classified right.
    """

    loss: float = 0.0
    count: float = 0.0
    examples: int = 0
    others: dict[str, float] = field(default_factory=dict)

    def add(self, sums: MetricSums, examples: int) -> "Totals":
        """The sums over these examples and so many others."""
        new = dict(sums.others) if sums.correct is None else {"accuracy": sums.correct, **sums.others}
        others = {name: self.others.get(name, 0.0) + float(value) for name, value in new.items()}
        return Totals(self.loss + float(sums.loss), self.count + float(sums.count), self.examples + examples, others)

    def means(self, prefix: str = "") -> dict[str, float]:
        """The mean loss and the other means over the count, by name, each name behind `prefix`; none of no example."""
        sums = {"loss": self.loss, **self.others}
        return {f"{prefix}{name}": value / self.count for name, value in sums.items() if self.examples}


def require_finite(loss: float, step: int) -> None:
    """A `DivergedError` where the loss of update `step` is not a finite number."""
    if not math.isfinite(loss):
        raise DivergedError(
            f"the loss is {loss} at step {step}: try a lower --learning-rate, --warmup-steps 100, or --clip-norm 1",
            step,
        )


class Meter:
    """Adds up the metrics of updates and times them. Reads metrics two updates late, so that the devices never wait for
    the host; this also bounds how far the host can run ahead of them.
    """

    def __init__(self, totals: Totals = Totals()):
        self.totals = totals
        self.waiting: deque[tuple[int, MetricSums, int]] = deque()
        self.updates = self.examples = 0
        self.clock, self.seconds = time.perf_counter(), 0.0

    def add(self, step: int, sums: MetricSums, examples: int) -> None:
        """Take the metrics of update `step`, which may still be computed, over so many examples.

        Raises:
            DivergedError: the loss of an earlier update is not finite.
        """
        self.waiting.append((step, sums, examples))
        self.updates, self.examples = self.updates + 1, self.examples + examples
        if len(self.waiting) > UPDATES_BEHIND:
            self.read()
        self.seconds = time.perf_counter() - self.clock

    def restart_clock(self) -> float:
        """Wait for all updates, leave them out of the timing, and return the seconds they took."""
        self.finish()
        seconds, self.clock, self.updates, self.examples = self.seconds, time.perf_counter(), 0, 0
        return seconds

    @property
    def examples_per_second(self) -> float | None:
        """Speed since the clock was last restarted; None where no update was timed."""
        return self.examples / self.seconds if self.updates else None

    @property
    def step_ms(self) -> float | None:
        """Milliseconds an update since the clock was last restarted; None where no update was timed."""
        return 1000 * self.seconds / self.updates if self.updates else None

    def read(self) -> None:
        """Wait for the oldest update that is not read yet and add its metrics."""
        step, sums, examples = self.waiting.popleft()
        self.totals = self.totals.add(jax.device_get(sums), examples)
        if not math.isfinite(self.totals.loss):
            # A process that ends while its devices still compute would break what the others' devices compute with it.
            jax.block_until_ready([later for _, later, _ in self.waiting])
        require_finite(self.totals.loss, step)

    def finish(self) -> Totals:
        """Wait for all updates; the sums over them."""
        while self.waiting:
            self.read()
        self.seconds = time.perf_counter() - self.clock
        return self.totals
