"""Output of a run: lines, a progress bar, its log, metrics, TensorBoard files and a trace."""

import contextlib
import functools
import json
import math
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import jax
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from pmapdp.devices import count_from_environment, describe
from pmapdp.errors import explain_errors
from pmapdp.files import ADVICE, open_file, open_regular
from pmapdp.job import Job
from pmapdp.metrics import Meter
from pmapdp.recipes import RECIPES
from pmapdp.sharding.layout import bytes_on_a_device, state_line
from pmapdp.state import TrainState

USES = {
    "train": "train",
    "validation": "validate",
    "test": "test",
}  # of the parts of a data set
SECONDS_BETWEEN_LINES, SECONDS_BETWEEN_REFRESHES = (
    10.0,
    0.2,
)  # of progress lines, and of the bar on a terminal
UPDATES_BETWEEN_POINTS = 50  # of the train loss in TensorBoard
WARM_UP, TRACED = 4, 10  # updates before the trace of --profile, and in it


def open_lines(path: str | Path) -> TextIO:
    """Open a text file to append whole lines. Half a line at its end, which a kill may leave, is ended first."""
    with explain_errors(f"{path} cannot be written", ADVICE):
        descriptor = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        if (end := os.fstat(descriptor).st_size) and os.pread(
            descriptor, 1, end - 1
        ) != b"\n":
            os.write(descriptor, b"\n")
        return open(
            descriptor, "a", buffering=1, encoding="utf-8", errors="backslashreplace"
        )


def read_epochs(folder: str | Path) -> list[dict[str, Any]]:
    """Return the results of the epochs in the metrics file of a run, in its order."""
    file = Path(folder) / "metrics.jsonl"
    if not file.exists():
        return []
    epochs = []
    with open_file(file, advice=ADVICE) as lines:
        for line in lines:
            # A kill may have left half a line.
            with contextlib.suppress(ValueError):
                values = json.loads(line)
                if values.pop("event") == "epoch":
                    epochs.append(values)
    return epochs


class Reporter:
    """Shows and writes what a run of `job` reports from `step` on. Only the first process does."""

    def __init__(
        self, job: Job, state: TrainState, step: int, stack: contextlib.ExitStack
    ):
        config, self.is_first, self.epochs = (
            job.config,
            job.processes.is_first,
            job.config.epochs,
        )
        self.steps, self.per_epoch, self.updates = (
            job.total_steps,
            job.batches["train"].per_epoch,
            0,
        )
        self.log_every, self.logged_step = config.log_every, step
        self.bar: Progress | None = None
        self.log: TextIO | None = None
        self.metrics: list[TextIO] = []
        self.tensorboard: Any = None
        self.trace: Path | None = None
        if config.metrics_file and self.is_first:
            self.metrics.append(stack.enter_context(open_lines(config.metrics_file)))
        if config.workdir and self.is_first:
            from tensorboardX import SummaryWriter  # takes a while to import

            folder = Path(config.workdir)
            self.metrics.append(
                stack.enter_context(open_lines(folder / "metrics.jsonl"))
            )
            self.log = stack.enter_context(open_lines(folder / "log.txt"))
            self.tensorboard = stack.enter_context(
                contextlib.closing(SummaryWriter(str(folder)))
            )
            self.tensorboard.add_text(
                "configuration",
                "\n".join(f"- {name}: {x}" for name, x in vars(config).items()),
            )
            self.trace = folder / "profile" if config.profile else None
        facts, header = describe_run(job, state)
        self.event("start", **vars(config) | facts)
        self.line(*header, "")
        self.show_progress = config.progress and self.is_first
        if self.show_progress and sys.stdout.isatty():
            columns = [
                BarColumn(12),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
            ]
            self.bar = stack.enter_context(
                Progress(*columns, TimeRemainingColumn(compact=True), transient=True)
            )
            self.bar.add_task("compiling", total=self.steps, completed=step)
        self.shown = (
            -math.inf if self.bar else time.monotonic()
        )  # a bar changes as soon as it has compiled

    def line(self, *texts: str) -> None:
        """Print lines as they are, and write them to the log."""
        for text in texts:
            if self.log:
                self.log.write(text + "\n")
            if self.bar:  # above it
                self.bar.console.print(
                    text, markup=False, highlight=False, soft_wrap=True
                )
            elif self.is_first:
                print(text, flush=True)

    def event(self, name: str, **values: Any) -> None:
        """Append a JSON line `{"event": name, ...}` to the metrics files."""
        for file in self.metrics:
            file.write(json.dumps({"event": name, **values}) + "\n")

    def log_losses(self, meter: Meter) -> None:
        """Write the losses that were read since the last call, of each N-th update."""
        if self.log_every is None:
            return
        for step, loss in meter.losses:
            if step > self.logged_step and step % self.log_every == 0:
                self.event("update", step=step, loss=loss)
                self.logged_step = step

    def update(self, step: int, state: TrainState, meter: Meter) -> None:
        """Show the progress now and then, add a point to TensorBoard, and trace some updates with --profile."""
        self.updates += 1
        if self.updates == WARM_UP and self.trace:
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self.trace), create_perfetto_trace=True)
        elif self.updates == WARM_UP + TRACED:
            self.end_trace(state)
        if self.tensorboard and step % UPDATES_BETWEEN_POINTS == 0 and meter.means:
            self.tensorboard.add_scalar(
                "train/loss_so_far_in_the_epoch", meter.means["loss"], step
            )
        self.log_losses(meter)
        now, wait = (
            time.monotonic(),
            SECONDS_BETWEEN_REFRESHES if self.bar else SECONDS_BETWEEN_LINES,
        )
        if not self.show_progress or now - self.shown < wait:
            return
        epoch, figures = (
            f"epoch {(step - 1) // self.per_epoch + 1}/{self.epochs}",
            in_words(meter.means),
        )
        speed = (
            [f"{meter.timed_examples / meter.seconds:,.0f} examples/s"]
            if meter.timed_updates
            else []
        )
        if self.bar:
            text = "  ".join(
                [epoch, *figures[:1], *speed]
            )  # the loss alone fits 80 columns
            self.bar.update(self.bar.task_ids[0], completed=step, description=text)
        elif speed:
            left = max(
                1, round((self.steps - step) * meter.seconds / meter.timed_updates)
            )
            self.line(
                "  ".join(
                    [
                        epoch,
                        f"update {step:,}/{self.steps:,}",
                        *figures,
                        *speed,
                        f"{left:,} s left",
                    ]
                )
            )
        self.shown = now

    def end_epoch(self, results: dict[str, Any]) -> None:
        """Print and write the results of a finished epoch."""
        self.event("epoch", **results)
        parts = {name: results[name] for name in USES if name in results}
        if self.tensorboard:
            figures = {
                f"{name}/{metric}": value
                for name, part in parts.items()
                for metric, value in part.items()
            }
            for tag, value in (
                figures | {"learning_rate": results["learning_rate"]}
            ).items():
                self.tensorboard.add_scalar(tag, value, results["step"])
            self.tensorboard.flush()
        speed = (
            f"{results['examples_per_second']:,.0f} examples/s"
            if results["step_ms"]
            else "one update, not timed"
        )
        shown = [
            " ".join([name.replace("validation", "valid"), *in_words(part)])
            for name, part in parts.items()
        ]
        self.line(
            "  ".join([f"epoch {results['epoch']}/{self.epochs}", *shown, speed])
        )  # at most 100 columns

    def end_trace(self, state: TrainState | None = None) -> None:
        """End the trace, even if the run ended before it did."""
        if self.trace and self.updates >= WARM_UP:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            file = max(
                self.trace.glob("**/perfetto_trace.json.gz"),
                key=lambda path: path.stat().st_mtime,
            )
            self.line(f"trace: open {file} at ui.perfetto.dev")
            self.trace = None


def describe_run(job: Job, state: TrainState) -> tuple[dict[str, Any], list[str]]:
    """Return the facts about a run for the metrics files, and the lines of the header."""
    config, batches = job.config, job.batches["train"]
    per_device = math.ceil(batches.batch_size / batches.devices)
    facts = {
        "devices": len(job.devices),
        "global_batch_size": batches.batch_size,
        "per_device_batch_size": per_device,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "examples": {name: part.examples for name, part in job.batches.items()},
        "state_bytes_on_a_device": bytes_on_a_device(
            (state.params, state.optimizer_state)
        ),
        "jax": jax.__version__,
    }
    named = RECIPES[config.recipe].config
    recipe = (
        f"recipe {named.recipe}, "
        if (config.dataset, config.model) == (named.dataset, named.model)
        else ""
    )
    layout = f", {job.layout.text}" if config.mesh or config.layout != "data" else ""
    few = (
        len(job.devices) == 1
        and job.devices[0].platform == "cpu"
        and config.strategy != "single"
    )
    if few and not config.devices and not count_from_environment():
        layout += ", with which JAX had started: call pmapdp.devices.simulate(8) before its first use for more"
    micro_batches = (
        f", in {config.accumulate} micro-batches" if config.accumulate > 1 else ""
    )
    data = [
        f"{x.examples:,} to {USES[name]}{' (weighted)' * x.is_weighted}"
        for name, x in job.batches.items()
    ]
    data += [f"content {job.content}"] if job.content else []
    count = f"{job.processes.count} process{'es' if job.processes.count > 1 else ''}"
    rows = {
        "run": f"{recipe}strategy {config.strategy}, seed {config.seed}, {config.dtype}",
        "devices": describe(job.devices) + layout,
        "batch": f"{batches.batch_size:,} over all devices, at most {per_device:,} on one{micro_batches}",
        "model": f"{config.model}, {facts['parameters']:,} parameters",
        "loss": name_of_loss(job.task.loss),
        "updates": f"{job.total_steps:,}, {batches.per_epoch:,} an epoch; {config.optimizer}, {config.schedule}",
        "state": state_line(state),
        "data": ", ".join([config.dataset, *data]),
        "started": f"{job.processes.launcher}, {count}, jax {jax.__version__}, Python {platform.python_version()}",
    }
    if job.task.augment is not None:
        name = getattr(
            job.task.augment, "__qualname__", type(job.task.augment).__name__
        )
        rows["loss"] += f" of examples changed by {name}"
    if job.task.classifies and config.label_smoothing:
        rows["loss"] += ", smoothed in training alone: the test loss may be lower"
    return facts, [f"{name:<7}  {value}" for name, value in rows.items()]


def name_of_loss(loss: Any) -> str:
    """Name a loss with its settings, for example `cross_entropy(label_smoothing=0.1)`."""
    if not isinstance(loss, functools.partial):
        return getattr(loss, "__qualname__", type(loss).__name__)
    settings = [
        f"{name}={getattr(value, '__name__', value)}"
        for name, value in loss.keywords.items()
        if value
    ]
    return f"{name_of_loss(loss.func)}({', '.join(settings)})"


def in_words(results: dict[str, float]) -> list[str]:
    """Return the metrics of a part of the data set for the screen, for example `loss 0.1234` and `accuracy 0.9876`."""
    return [
        f"{name} {value:.4f}" for name, value in results.items() if name != "examples"
    ]
