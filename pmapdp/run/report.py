"""What a run shows and writes as it goes: a progress bar on a terminal, lines, its log, metrics, TensorBoard files."""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pmapdp.config import Config
from pmapdp.metrics import Meter
from pmapdp.run.log import LinesFile

PARTS = ("train", "validation", "test")
SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_REFRESHES = 0.2


class Reporter:
    """Reports a run of `config`; only the `first` process does. `stack` closes the files."""

    def __init__(self, config: Config, stack: contextlib.ExitStack, *, first: bool):
        # A notebook's kernel asks for colours by a variable, and would keep every redraw of the bar in the notebook.
        terminal = None if sys.stdout and sys.stdout.isatty() else False
        options: dict[str, Any] = {"highlight": False, "soft_wrap": True, "force_jupyter": False}
        self.console = Console(**options, force_terminal=terminal, quiet=not first)
        self.progress, self.epochs = config.progress and first, config.epochs
        self.bar: Progress | None = None
        self.log, self.tensorboard, self.metrics = None, None, []
        if config.metrics_file and first:
            file = LinesFile(config.metrics_file, f"--metrics-file {config.metrics_file}")
            self.metrics.append(stack.enter_context(contextlib.closing(file)))
        if config.workdir is not None and first:
            from pmapdp.run.tensorboard import TensorBoard  # its library takes a while to import

            folder = Path(config.workdir)
            self.metrics.append(stack.enter_context(contextlib.closing(LinesFile(folder / "metrics.jsonl"))))
            self.log = stack.enter_context(contextlib.closing(LinesFile(folder / "log.txt")))
            self.tensorboard = stack.enter_context(contextlib.closing(TensorBoard(folder)))
        stack.callback(self.end_epoch)

    def line(self, text: str = "") -> None:
        """Print one line as it is, and write it to the log."""
        if self.log:
            self.log.line(text)
        self.console.print(text, markup=False)

    def lines(self, texts: list[str]) -> None:
        """Print lines, and take them out of the list."""
        while texts:
            self.line(texts.pop(0))

    def event(self, name: str, **values: Any) -> None:
        """Append an event to the metrics files."""
        for file in self.metrics:
            file.event(name, **values)

    def start_epoch(self, epoch: int, steps: int, done: int = 0) -> None:
        """Begin `epoch` (from 1) of `steps` steps, of which `done` were made by an earlier start of the run."""
        self.epoch, self.steps, self.shown = epoch, steps, time.monotonic()
        if self.progress and self.console.is_terminal:
            self.bar = Progress(BarColumn(20), TextColumn("{task.description}"), console=self.console, transient=True)
            self.bar.start()
            text = f"epoch {epoch}/{self.epochs} step {done}/{steps}  compiling"
            self.task = self.bar.add_task(text, total=steps, completed=done)

    def step(self, step: int, meter: Meter) -> None:
        """Show step `step` (from 1, within the epoch) now and then, with the metrics of the epoch so far."""
        now = time.monotonic()
        wait = SECONDS_BETWEEN_REFRESHES if self.bar else SECONDS_BETWEEN_LINES
        if not self.progress or now - self.shown < wait or not meter.totals.count:
            return
        self.shown = now
        seconds_left = (self.steps - step) * (meter.step_ms or 0) / 1000
        text = (
            f"epoch {self.epoch}/{self.epochs} step {step}/{self.steps}  {in_words(meter.totals.means(), 2)}  "
            f"{meter.examples_per_second or 0:,.0f} examples/s  {seconds_left:.0f} s left"
        )
        if self.bar:
            self.bar.update(self.task, completed=step, description=text)
        else:
            self.line(text)

    def end_epoch(self) -> None:
        """Take the progress bar away."""
        if self.bar:
            self.bar.stop()
            self.bar = None

    def results(self, results: dict[str, Any]) -> None:
        """Print and write the metrics of a finished epoch (the keys of the metrics file)."""
        self.event("epoch", **results)
        if self.tensorboard:
            self.tensorboard.epoch(results)
        speed, step_ms = results["examples_per_second"], results["step_ms"]
        self.line(
            f"epoch {results['epoch']}/{self.epochs}"
            + "".join(f" | {part} {in_words(means)}" for part in PARTS if (means := means_of(part, results)))
            + f" | lr {results['learning_rate']:.3g}"
            + (f" | {step_ms:.1f} ms/step, {speed:,.0f} examples/s" if speed else " | one update, not timed")
        )

    def end(self, best: dict[str, Any], last: dict[str, Any], key: str, compile_seconds: float, seconds: float) -> None:
        """Print the best and the last result (the `key` of both), where an epoch was finished, and where the time
        went."""
        self.line()
        if best:
            name = key.replace("_", " ", 1)
            self.line(f"{name}: best {best[key]:.4f} (epoch {best['epoch']}), last {last[key]:.4f}")
        self.line(f"{seconds:.1f} s in all, of which {compile_seconds:.1f} s to compile")


def means_of(part: str, results: dict[str, Any]) -> dict[str, float]:
    """The loss and the other metrics of a part of the data set, out of the results of an epoch."""
    means = {name.removeprefix(f"{part}_"): value for name, value in results.items() if name.startswith(f"{part}_")}
    means.pop("examples", None)
    return means


def in_words(means: dict[str, float], spaces: int = 1) -> str:
    """Means for the screen, for example `loss 0.1234 accuracy 0.9876`."""
    return (" " * spaces).join(f"{name} {value:.4f}" for name, value in means.items())
