"""Report a run on the screen, in its log and in its metrics files."""

import contextlib
import math
import shlex
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import jax
from rich import progress as rich

from pmapdp.job import Job
from pmapdp.metrics import READ_TOGETHER, UPDATES_AHEAD, Meter
from pmapdp.recipes import compare_with_reported
from pmapdp.registry import parts_from_python
from pmapdp.run.header import header_lines, run_facts
from pmapdp.run.metrics_files import MetricsFiles, open_lines
from pmapdp.run.progress import Progress, choose_metric
from pmapdp.run.trace import Trace
from pmapdp.state import TrainState

SECONDS_BETWEEN_LINES = 10.0  # of progress
SECONDS_BETWEEN_REFRESHES = 0.2  # of the bar on a terminal
BESIDE_BAR = 68  # columns of the numbers beside it
STEADY_SPEED = 10  # updates of an epoch: the bar shows no speed of fewer


class Report:
    """Prints a run's lines, with a bar on a terminal, and writes its log and metrics.

    Only the first process prints and writes. `stack` closes what this opens.
    """

    def __init__(self, job: Job, stack: contextlib.ExitStack):
        config = job.config
        self.job = job
        self.stack = stack
        self.is_process_0 = job.processes.is_process_0
        self.shows_progress = config.progress and self.is_process_0
        self.compile_seconds: float | None = None  # of the first update
        self.newest_loss = ""  # for the bar
        self.newest_speed = ""
        self.bar: rich.Progress | None = None
        self.log: TextIO | None = None
        if config.workdir and self.is_process_0:
            log = open_lines(Path(config.workdir) / "log.txt")
            self.log = stack.enter_context(log)
        self.files = MetricsFiles(job, stack)
        self.trace = Trace(job, self.print_line)
        # A run that's stopped, or that diverges, ends its trace, too.
        stack.callback(self.trace.end)
        self.last_shown = time.monotonic()

    def print_line(self, *texts: str) -> None:
        """Print lines as they are, and write them to the log."""
        for text in texts:
            if self.log:
                self.log.write(text + "\n")
            if self.bar:  # above it
                self.bar.console.print(
                    text, markup=False, highlight=False, soft_wrap=True
                )
            elif self.is_process_0:
                print(text, flush=True)

    def start(self, state: TrainState, step: int, message: str) -> None:
        """Report the settings, and `message`, which says where the state comes from."""
        facts = run_facts(self.job, state)
        self.files.write_event("start", **vars(self.job.config) | facts)
        self.print_line(*header_lines(self.job, state, facts), "")
        if message:
            event = "init_from"
            if step:
                event = "resume"
            self.files.write_event(event, step=step)
            self.print_line(message)
        if self.job.config.draw_sharding and self.is_process_0 and step == 0:
            draw_first_batch(self.job)
        # Last, because a drawing would break the bar.
        is_complete = step == self.job.total_steps
        if self.shows_progress and sys.stdout.isatty() and not is_complete:
            self.bar = rich.Progress(
                rich.BarColumn(
                    max(12, shutil.get_terminal_size().columns - BESIDE_BAR)
                ),
                rich.MofNCompleteColumn(),
                rich.TimeRemainingColumn(compact=True),
                rich.TextColumn("{task.description}"),  # last, as its length changes
                transient=True,
            )
            self.stack.enter_context(self.bar)
            self.bar.add_task("compiling", total=self.job.total_steps, completed=step)
            self.last_shown = -math.inf  # it changes as soon as it has compiled

    def update(self, progress: Progress, meter: Meter, state: TrainState) -> None:
        """Report an update, which the devices may still compute."""
        # The speed is without the first update, which was compiled, and without those
        # that --profile slows down.
        if self.compile_seconds is None:
            meter.finish()
            self.compile_seconds = meter.seconds
            meter.start_clock()
        if self.trace.update(state):
            meter.start_clock()
        self.files.write_losses(meter)
        wait = SECONDS_BETWEEN_LINES
        if self.bar:
            wait = SECONDS_BETWEEN_REFRESHES
            if progress.is_epoch_end:
                wait = 0.0  # the bar stays there while the run evaluates
        now = time.monotonic()
        if self.shows_progress and now - self.last_shown >= wait:
            self.show_progress(progress, meter)
            self.last_shown = now

    def show_progress(self, progress: Progress, meter: Meter) -> None:
        """Move the bar, or print a line if there is none."""
        step = progress.step
        epoch = self.name_epoch(progress.epoch)
        figures = format_metrics(meter.means)
        # The devices may still compute the updates that the host has queued ahead.
        finished = meter.timed_updates - UPDATES_AHEAD
        speed = ""
        if finished > 0:
            updates_per_second = finished / meter.seconds
            examples = updates_per_second * self.job.batches["train"].batch_size
            speed = f"{examples:,.0f} examples/s"
        if self.bar:
            if finished >= STEADY_SPEED:
                self.newest_speed = speed
            # The loss alone fits 80 columns.
            self.read_newest_loss(meter)
            text = "  ".join([epoch, self.newest_loss, self.newest_speed]).rstrip()
            self.bar.update(
                self.bar.task_ids[0], completed=step, description=text, refresh=True
            )
        elif speed:
            steps = self.job.total_steps
            left = (steps - step) / updates_per_second
            seconds = f"{max(1, round(left)):,} s left"
            total = f"{steps:,}"
            update = f"update {step:>{len(total)},}/{total}"
            self.print_line("  ".join([epoch, update, *figures, speed, seconds]))

    def read_newest_loss(self, meter: Meter) -> None:
        """Keep the mean loss of the updates that the host read last.

        At the start of an epoch the host has read none of its losses. So the bar shows
        the newest that it has read, perhaps of the epoch before.
        """
        losses = [loss for _, loss in meter.losses]
        if losses:
            mean = statistics.fmean(losses[-READ_TOGETHER:])
            self.newest_loss = f"loss {mean:.4f}"

    def name_epoch(self, number: int) -> str:
        """Return `epoch  1/20`, so that columns stay where they are at epoch 10."""
        epochs = str(self.job.config.epochs)
        return f"epoch {number:>{len(epochs)}}/{epochs}"

    def end_epoch(self, results: dict[str, Any], meter: Meter) -> None:
        """Report the results of an epoch."""
        self.files.end_epoch(results, meter)
        texts = [self.name_epoch(results["epoch"])]
        for name in self.job.batches:
            if name in results:
                label = name.replace("validation", "valid")  # keeps the line short
                texts.append(" ".join([label, *format_metrics(results[name])]))
        self.print_line("  ".join(texts))  # 80 columns, with a recipe's metrics
        self.read_newest_loss(meter)

    def end(self, progress: Progress, seconds: float) -> None:
        """Report the end of a run that took `seconds`."""
        self.trace.end()
        config = self.job.config
        best = progress.best
        last = progress.last
        self.print_line("")
        if progress.step < self.job.total_steps:
            self.print_line(
                f"ended after epoch {last['epoch']}: the last {config.patience} were "
                "no better than the best"
            )
        if best:
            part, _, name = choose_metric(best, config.best)
            self.print_line(
                f"{part} {name}: best {best[part][name]:.4f} (epoch {best['epoch']}), "
                f"last {last[part][name]:.4f}"
            )
        compiling = self.compile_seconds or 0.0
        self.files.write_event(
            "end", steps=progress.step, compile_seconds=compiling, total_seconds=seconds
        )
        total = f"{seconds:.1f} s in all, of which {compiling:.1f} s to compile"
        if last and last["examples_per_second"]:
            total += f"; last epoch {last['examples_per_second']:,.0f} examples/s"
        if self.compile_seconds is None:
            total = "the run was complete before: no update was left"
        epochs = list(progress.epochs.values())
        per_epoch = self.job.batches["train"].per_epoch
        self.print_line(total, *compare_with_reported(config, epochs, per_epoch))
        self.print_line(*self.describe_saved(progress.step))

    def describe_saved(self, step: int) -> list[str]:
        """Say where the run is saved after update `step`, and how to go on with it."""
        config = self.job.config
        if config.workdir is None:
            return ["not saved: add --workdir runs/first to save and resume a run"]
        saved = f"saved in {config.workdir}"
        if step == config.epochs * self.job.batches["train"].per_epoch:
            saved += "; to go on, raise --epochs"
        elif step == config.steps:
            saved += "; to go on, leave out --steps"
        lines = [saved]
        # The command can't evaluate a model that only your program has.
        if self.job.evaluated_part and not parts_from_python(config):
            command = f"python -m pmapdp.evaluate {shlex.quote(config.workdir)}"
            lines.append(f"evaluate it with {command}")
        return lines


def draw_first_batch(job: Job) -> None:
    """Draw how the labels of the first batch lie on the devices."""
    batch = next(job.batches["train"].epoch(0))
    labels = job.strategy.place_batch(batch).labels
    print(f"labels {labels.shape} of the first batch on the devices:")
    jax.debug.visualize_array_sharding(labels)


def format_metrics(results: dict[str, float]) -> list[str]:
    """Return a part's metrics for the screen, as `loss 0.1234`, `accuracy 0.9876`."""
    metrics = {name: x for name, x in results.items() if name != "examples"}
    return [f"{name} {value:.4f}" for name, value in metrics.items()]
