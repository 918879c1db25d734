"""What a run shows and writes as it goes: a progress bar on a terminal, lines, its log, metrics, TensorBoard files."""

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from pmapdp.devices import describe
from pmapdp.job import Job
from pmapdp.metrics import Meter
from pmapdp.run.log import LinesFile
from pmapdp.sharding.layout import bytes_on_a_device, state_line
from pmapdp.state import TrainState, count_parameters

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_REFRESHES = 0.2


def facts(job: Job, state: TrainState) -> dict[str, Any]:
    """What follows from the settings of a run, its data and the machine, for the metrics file."""
    return {
        "devices": len(job.devices),
        "global_batch_size": job.global_batch_size,
        "per_device_batch_size": job.per_device_batch_size,
        "parameters": count_parameters(state.params),
        "steps_per_dispatch": job.steps_per_dispatch,
        "train_examples": job.train_batches.examples,
        "test_examples": job.test_batches.examples,
        "state_bytes_on_a_device": bytes_on_a_device((state.params, state.optimizer_state)),
        "jax": jax.__version__,
    }


def header(job: Job, state: TrainState, settings: dict[str, Any]) -> list[str]:
    """The same in lines for the screen."""
    layout = job.layout.text if settings["mesh"] or settings["layout"] != "data" else ""
    B, b, S = job.global_batch_size, job.per_device_batch_size, job.steps_per_dispatch
    accumulate, train_batches = settings["accumulate"], job.train_batches
    processes = "1 process" if job.peers.count == 1 else f"{job.peers.count} processes"
    shown = {
        "recipe": "{recipe}, strategy {strategy}, seed {seed}, {dtype}".format(**settings),
        "devices": describe(job.devices) + (f", {layout}" if layout else ""),
        "batch": f"{B:,} over all devices, at most {b:,} on one"
        + (f", in {accumulate} micro-batches" if accumulate > 1 else ""),
        "model": f"{settings['model']}, {count_parameters(state.params):,} parameters",
        "state": state_line(state),
        "data": f"{settings['dataset']}, {train_batches.examples:,} to train, {job.test_batches.examples:,} to test",
        "updates": f"{job.total_steps:,}, {train_batches.steps:,} an epoch"
        + (f", up to {S} in a dispatch" if S > 1 else ""),
        "started": f"{job.peers.started}, {processes}, jax {jax.__version__}, Python {sys.version.split()[0]}",
    }
    return [*(f"{name:<7}  {value}" for name, value in shown.items()), ""]


class Report:
    """Reports a run with these settings; only the `first` process does. `stack` closes the files."""

    def __init__(self, settings: dict[str, Any], stack: contextlib.ExitStack, *, first: bool):
        self.console = Console(highlight=False, soft_wrap=True, force_jupyter=False, quiet=not first)
        self.progress, self.epochs = settings["progress"] and first, settings["epochs"]
        self.bar: Progress | None = None
        self.log, self.tensorboard, self.metrics = None, None, []
        if settings["metrics_file"] and first:
            file = LinesFile(settings["metrics_file"], f"--metrics-file {settings['metrics_file']}")
            self.metrics.append(stack.enter_context(contextlib.closing(file)))
        if settings["workdir"] is not None and first:
            from pmapdp.run.tensorboard import TensorBoard  # its library takes a while to import

            folder = Path(settings["workdir"])
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
        """Show step `step` (from 1, within the epoch) now and then, with loss and accuracy of the epoch so far."""
        now = time.monotonic()
        wait = SECONDS_BETWEEN_REFRESHES if self.bar else SECONDS_BETWEEN_LINES
        if not self.progress or now - self.shown < wait or not meter.totals.count:
            return
        self.shown = now
        seconds_left = (self.steps - step) * (meter.step_ms or 0) / 1000
        text = (
            f"epoch {self.epoch}/{self.epochs} step {step}/{self.steps}  loss {meter.totals.mean_loss:.4f}  "
            f"accuracy {meter.totals.accuracy:.4f}  {meter.examples_per_second or 0:,.0f} examples/s  "
            f"{seconds_left:.0f} s left"
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
