"""What a run shows: a header, a progress bar, one line per epoch. On a terminal with rich, elsewhere plain lines."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from pmapdp.metrics import Meter
from pmapdp.run.log import LinesFile

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_REFRESHES = 0.2


class Report:
    """Prints a run as it goes, or nothing where it is `quiet`, and inside of epochs too where there is `progress`."""

    def __init__(self, *, progress: bool, epochs: int, log: LinesFile | None = None, quiet: bool = False):
        self.console = Console(highlight=False, soft_wrap=True, force_jupyter=False, quiet=quiet)
        self.progress, self.epochs, self.log = progress, epochs, log
        self.bar: Progress | None = None
        self.shown = 0.0

    def line(self, text: str = "") -> None:
        """Print one line as it is, and write it to the log."""
        if self.log:
            self.log.line(text)
        self.console.print(text, markup=False)

    def start_epoch(self, epoch: int, steps: int, done: int = 0) -> None:
        """Begin `epoch` (from 1) of `steps` steps, of which `done` were made by an earlier start of the run."""
        self.epoch, self.steps, self.shown = epoch, steps, time.monotonic()
        if self.progress and self.console.is_terminal:
            self.bar = Progress(
                TextColumn(f"epoch {epoch}/{self.epochs}"),
                BarColumn(),
                TextColumn("{task.completed}/{task.total}"),
                TextColumn("{task.fields[text]}"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
                refresh_per_second=4,
            )
            self.bar.start()
            self.task = self.bar.add_task("", total=steps, completed=done, text="compiling")

    def step(self, step: int, meter: Meter) -> None:
        """Show step `step` (from 1, within the epoch) now and then: the last loss and the epoch's accuracy so far."""
        now = time.monotonic()
        wait = SECONDS_BETWEEN_REFRESHES if self.bar else SECONDS_BETWEEN_LINES
        if not self.progress or now - self.shown < wait or not meter.totals.count:
            return
        self.shown = now
        speed = meter.examples_per_second or 0
        text = f"loss {meter.last_loss:.4f}  accuracy {meter.totals.accuracy:.4f}  {speed:,.0f} examples/s"
        if self.bar:
            self.bar.update(self.task, completed=step, text=text)
        else:
            seconds_left = (self.steps - step) * (meter.step_ms or 0) / 1000
            self.line(f"epoch {self.epoch}/{self.epochs} step {step}/{self.steps}  {text}  {seconds_left:.0f} s left")

    def end_epoch(self) -> None:
        """Take the progress bar away."""
        if self.bar:
            self.bar.stop()
            self.bar = None

    def results(self, results: dict[str, Any]) -> None:
        """Print the line of a finished epoch from its metrics (the keys of the metrics file)."""
        speed, step_ms = results["examples_per_second"], results["step_ms"]
        self.line(
            f"epoch {results['epoch']}/{self.epochs}"
            f" | train loss {results['train_loss']:.4f} accuracy {results['train_accuracy']:.4f}"
            f" | test loss {results['test_loss']:.4f} accuracy {results['test_accuracy']:.4f}"
            f" | lr {results['learning_rate']:.3g}"
            + (f" | {step_ms:.1f} ms/step, {speed:,.0f} examples/s" if speed else " | one dispatch, not timed")
        )

    def end(self, best: dict[str, Any], last: dict[str, Any], compile_seconds: float, seconds: float) -> None:
        """Print the best and the last test accuracy, where an epoch was finished, and where the time went."""
        self.line()
        if best:
            self.line(
                f"test accuracy: best {best['test_accuracy']:.4f} (epoch {best['epoch']}), "
                f"last {last['test_accuracy']:.4f}"
            )
        self.line(f"{seconds:.1f} s in all, of which {compile_seconds:.1f} s to compile")
