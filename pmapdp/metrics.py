"""Results of a run: sums on the host, read back without stopping the devices. Lesson 14 teaches this file."""

import math
import time
from collections import deque
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

from pmapdp.errors import DivergedError
from pmapdp.loss import MetricSums

UPDATES_BEHIND = 2  # the host starts no more updates than this before it waits for the oldest
READ_TOGETHER = 16  # so many updates' metrics are one copy to the host, which costs as much as that of one
SECONDS_UNREAD = 1.0  # after which metrics are read even where they are fewer


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


@jax.jit
def stacked(*sums: MetricSums) -> MetricSums:
    """The metrics of several updates in arrays `[updates]`."""
    return jax.tree.map(lambda *each: jnp.stack(each), *sums)


def to_host(sums: list[MetricSums]) -> list[MetricSums]:
    """The metrics of some updates; of `READ_TOGETHER` in one copy, of another number in one for each update."""
    if len(sums) != READ_TOGETHER:  # one program is compiled, not one for each number
        return jax.device_get(sums)
    together = jax.device_get(stacked(*jax.tree.map(lambda x: x.addressable_data(0), sums)))
    return [jax.tree.map(lambda x, number=number: x[number], together) for number in range(READ_TOGETHER)]


class Meter:
    """Adds up the metrics of updates and times them, without stopping the devices: the host waits for an update when
    two more have been started. It reads its metrics later, with those of others; one of several processes at once.
    """

    def __init__(self, totals: Totals = Totals()):
        self.totals = totals
        self.waiting: deque[tuple[int, MetricSums, int]] = deque()
        self.updates = self.examples = 0
        self.clock, self.seconds = time.perf_counter(), 0.0
        self.read_at = self.clock

    def add(self, step: int, sums: MetricSums, examples: int) -> None:
        """Take the metrics of update `step`, which may still be computed, over so many examples.

        Raises:
            DivergedError: the loss of an earlier update is not finite.
        """
        self.waiting.append((step, sums, examples))
        self.updates, self.examples = self.updates + 1, self.examples + examples
        if (done := len(self.waiting) - UPDATES_BEHIND) > 0:
            jax.block_until_ready(self.waiting[done - 1][1].loss)
            late = time.perf_counter() - self.read_at >= SECONDS_UNREAD
            # Processes with clocks of their own must all see a loss that is not finite after the same update.
            if done == READ_TOGETHER or late or jax.process_count() > 1:
                self.read(done)
        self.seconds = time.perf_counter() - self.clock

    def restart_clock(self) -> float:
        """Wait for all updates, leave them out of the timing, and return the seconds they took."""
        if self.waiting:
            to_host(READ_TOGETHER * [self.waiting[-1][1]])  # compiles, so that this is not timed later
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

    def read(self, count: int) -> None:
        """Add the metrics of the oldest `count` updates that are not read yet; the first loss among them that is not
        finite is a `DivergedError`."""
        oldest = [self.waiting.popleft() for _ in range(count)]
        for (step, _, examples), sums in zip(oldest, to_host([sums for _, sums, _ in oldest]), strict=True):
            self.totals = self.totals.add(sums, examples)
            if not math.isfinite(self.totals.loss):
                # A process that ends while its devices still compute would break what the others' devices compute.
                jax.block_until_ready([later for _, later, _ in self.waiting])
            require_finite(self.totals.loss, step)
        self.read_at = time.perf_counter()

    def finish(self) -> Totals:
        """Wait for all updates; the sums over them."""
        self.read(len(self.waiting))
        self.seconds = time.perf_counter() - self.clock
        return self.totals
