"""The results of a run so far: which epoch is best, and if the run is done."""

import math
from dataclasses import dataclass, field
from typing import Any

from pmapdp.job import Job
from pmapdp.metrics import ACCURACIES


@dataclass
class Progress:
    """The results of a run so far.

    Attributes:
        job: The run.
        step: The updates made.
        epochs: The results of each epoch by its number, as in the metrics file.
        best: The results of the best epoch. {} before the first one has ended.
        last: The results of the last epoch that has ended, or {}.
        sums: The metric sums of an epoch that was saved in its middle, else {}.
        examples: The number of examples in them.
        best_state: The best epoch's state on the host, if no checkpoint has it.
    """

    job: Job
    step: int = 0
    epochs: dict[int, dict[str, Any]] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    examples: int = 0
    best_state: Any = None

    @property
    def is_done(self) -> bool:
        """Return True if the run makes no more updates.

        It ends after its last update, or after `--patience` epochs in a row that were
        no better than the best one.
        """
        if self.step >= self.job.total_steps:
            return True
        patience = self.job.config.patience
        if not patience or not self.last:
            return False
        return self.last["epoch"] - self.best["epoch"] >= patience

    @property
    def epoch(self) -> int:
        """Return the number of the last update's epoch, from 1."""
        return (self.step - 1) // self.job.batches["train"].per_epoch + 1

    @property
    def is_epoch_end(self) -> bool:
        """Return True after the last update of an epoch, or of the run."""
        per_epoch = self.job.batches["train"].per_epoch
        return self.step % per_epoch == 0 or self.step == self.job.total_steps

    @property
    def wants_best(self) -> bool:
        """Return True if the run was asked for its best epoch."""
        return bool(self.job.config.best or self.job.config.patience)

    def end_epoch(self, results: dict[str, Any]) -> None:
        """Add the results of an epoch."""
        self.epochs[results["epoch"]] = results
        self.last = results
        self.sums = {}
        self.examples = 0
        if not self.best or self.score(results) > self.score(self.best):
            self.best = results

    def score(self, results: dict[str, Any]) -> float:
        """Return how good an epoch was. Higher is better."""
        part, order, name = choose_metric(results, self.job.config.best)
        value = float(results[part][name])
        # NaN compares False with everything, so a first epoch of NaN would stay the
        # best.
        if math.isnan(value):
            return -math.inf
        return -value if order == "lowest" else value

    def to_json(self) -> dict[str, Any]:
        """Return the progress as a checkpoint holds it."""
        names = ("best", "last", "sums", "examples")
        return {name: getattr(self, name) for name in names}


def choose_metric(results: dict[str, Any], best: str | None) -> tuple[str, str, str]:
    """Return which metric decides which epoch is best: its part, order and name.

    `best` is the setting, for example "lowest:error". By default it's the highest
    accuracy, or the lowest loss if there is no accuracy.
    """
    part = next(part for part in ("validation", "test", "train") if part in results)
    if best is None:
        best = "lowest:loss"
        for accuracy in ACCURACIES:
            if accuracy in results[part]:
                best = f"highest:{accuracy}"
    order, _, name = best.partition(":")
    return part, order, name
