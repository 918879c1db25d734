"""Report a run: lines, a progress bar, its log, metrics, TensorBoard and a trace."""

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

# What the parts of a data set are for.
USES = {"train": "train", "validation": "validate", "test": "test"}
SECONDS_BETWEEN_LINES = 10.0  # of progress
SECONDS_BETWEEN_REFRESHES = 0.2  # of the bar on a terminal
UPDATES_BETWEEN_POINTS = 50  # of the train loss in TensorBoard
WARM_UP = 4  # updates before the trace of --profile
TRACED = 10  # updates in it


def open_lines(path: str | Path) -> TextIO:
    """Open a text file to append whole lines.

    Half a line at its end, which a kill may leave, is ended first.
    """
    with explain_errors(f"{path} cannot be written", ADVICE):
        descriptor = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        end = os.fstat(descriptor).st_size
        if end and os.pread(descriptor, 1, end - 1) != b"\n":
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
    """Shows and writes what a run reports from update `step` on.

    Only the first process does.
    """

    def __init__(
        self, job: Job, state: TrainState, step: int, stack: contextlib.ExitStack
    ):
        config = job.config
        self.stack = stack
        self.is_first = job.processes.is_first
        self.epochs = config.epochs
        self.steps = job.total_steps
        self.per_epoch = job.batches["train"].per_epoch
        self.updates = 0
        self.log_every = config.log_every
        self.logged_step = step
        self.bar: Progress | None = None
        self.log: TextIO | None = None
        self.metrics: list[TextIO] = []
        self.tensorboard: Any = None
        self.trace: Path | None = None
        self.profile = config.profile
        if config.metrics_file and self.is_first:
            self.metrics.append(stack.enter_context(open_lines(config.metrics_file)))
        if config.workdir and self.is_first:
            from tensorboardX import SummaryWriter  # takes a while to import

            folder = Path(config.workdir)
            metrics = stack.enter_context(open_lines(folder / "metrics.jsonl"))
            self.metrics.append(metrics)
            self.log = stack.enter_context(open_lines(folder / "log.txt"))
            writer = contextlib.closing(SummaryWriter(str(folder)))
            self.tensorboard = stack.enter_context(writer)
            settings = [f"- {name}: {value}" for name, value in vars(config).items()]
            self.tensorboard.add_text("configuration", "\n".join(settings))
            if config.profile:
                self.trace = folder / "profile"
        # A run that's stopped, or that diverges, ends its trace, too.
        stack.callback(self.end_trace)
        facts, header = describe_run(job, state)
        self.event("start", **vars(config) | facts)
        self.line(*header, "")
        self.show_progress = config.progress and self.is_first
        self.shown = time.monotonic()

    def start_progress(self, step: int) -> None:
        """Start the bar if this is a terminal."""
        if self.show_progress and sys.stdout.isatty():
            self.bar = Progress(
                BarColumn(12),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                TimeRemainingColumn(compact=True),
                transient=True,
            )
            self.stack.enter_context(self.bar)
            self.bar.add_task("compiling", total=self.steps, completed=step)
            self.shown = -math.inf  # it changes as soon as it has compiled

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

    def draw_first_batch(self, job: Job) -> None:
        """Draw how the labels of the first batch lie on the devices."""
        if not self.is_first:
            return
        batch = next(job.batches["train"].epoch(0))
        labels = job.strategy.place_batch(batch).labels
        print(f"labels {labels.shape} of the first batch on the devices:")
        jax.debug.visualize_array_sharding(labels)

    def log_losses(self, meter: Meter) -> None:
        """Write the losses that were read since the last call, of each N-th update."""
        if self.log_every is None:
            return
        for step, loss in meter.losses:
            if step > self.logged_step and step % self.log_every == 0:
                self.event("update", step=step, loss=loss)
                self.logged_step = step

    def update(self, step: int, state: TrainState, meter: Meter) -> None:
        """Show the progress now and then.

        Also add a point to TensorBoard, and trace some updates with --profile.
        """
        self.updates += 1
        if self.updates == WARM_UP and self.trace:
            # Otherwise the trace would begin with updates that were started before.
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self.trace), create_perfetto_trace=True)
        elif self.updates == WARM_UP + TRACED:
            self.end_trace(state)
        # The traced updates are slow, so examples/s is of the others alone.
        if self.profile and WARM_UP <= self.updates <= WARM_UP + TRACED:
            meter.start_clock()
        if self.tensorboard and step % UPDATES_BETWEEN_POINTS == 0 and meter.means:
            tag = "train/loss_so_far_in_the_epoch"
            self.tensorboard.add_scalar(tag, meter.means["loss"], step)
        self.log_losses(meter)
        wait = SECONDS_BETWEEN_REFRESHES if self.bar else SECONDS_BETWEEN_LINES
        now = time.monotonic()
        if self.show_progress and now - self.shown >= wait:
            self.show_progress_at(step, meter)
            self.shown = now

    def show_progress_at(self, step: int, meter: Meter) -> None:
        """Move the bar, or print a line if there is none."""
        epoch = f"epoch {(step - 1) // self.per_epoch + 1}/{self.epochs}"
        figures = in_words(meter.means)
        speed = []
        if meter.timed_updates:
            speed = [f"{meter.timed_examples / meter.seconds:,.0f} examples/s"]
        if self.bar:
            # The loss alone fits 80 columns.
            text = "  ".join([epoch, *figures[:1], *speed])
            task = self.bar.task_ids[0]
            self.bar.update(task, completed=step, description=text)
        elif speed:
            left = (self.steps - step) * meter.seconds / meter.timed_updates
            seconds = f"{max(1, round(left)):,} s left"
            update = f"update {step:,}/{self.steps:,}"
            self.line("  ".join([epoch, update, *figures, *speed, seconds]))

    def end_epoch(self, results: dict[str, Any]) -> None:
        """Print and write the results of a finished epoch."""
        self.event("epoch", **results)
        parts = {name: results[name] for name in USES if name in results}
        if self.tensorboard:
            scalars = {"learning_rate": results["learning_rate"]}
            for name, part in parts.items():
                for metric, value in part.items():
                    scalars[f"{name}/{metric}"] = value
            for tag, value in scalars.items():
                self.tensorboard.add_scalar(tag, value, results["step"])
            self.tensorboard.flush()
        texts = [f"epoch {results['epoch']}/{self.epochs}"]
        for name, part in parts.items():
            name = name.replace("validation", "valid")  # keeps the line short
            texts.append(" ".join([name, *in_words(part)]))
        self.line("  ".join(texts))  # 80 columns, if the metrics are those of a recipe

    def end_trace(self, state: TrainState | None = None) -> None:
        """End the trace, even if the run ended before it did."""
        if self.trace and self.updates >= WARM_UP:
            jax.block_until_ready(state)
            jax.profiler.stop_trace()
            # A resumed run may have traced before.
            files = self.trace.glob("**/perfetto_trace.json.gz")
            file = max(files, key=lambda path: path.stat().st_mtime)
            self.line(f"trace: open {file} at ui.perfetto.dev")
            self.trace = None


def describe_run(job: Job, state: TrainState) -> tuple[dict[str, Any], list[str]]:
    """Return the facts about a run for the metrics files, and the header's lines."""
    batches = job.batches["train"]
    per_device = math.ceil(batches.batch_size / batches.devices)
    arrays = (state.params, state.optimizer_state)
    facts = {
        "devices": len(job.devices),
        "global_batch_size": batches.batch_size,
        "per_device_batch_size": per_device,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "examples": {name: part.examples for name, part in job.batches.items()},
        "state_bytes_on_a_device": bytes_on_a_device(arrays),
        "jax": jax.__version__,
    }
    rows = describe_settings(job, facts) | {"state": state_line(state)}
    rows |= {"data": describe_data(job), "started": describe_start(job)}
    return facts, [f"{name:<7}  {value}" for name, value in rows.items()]


def describe_settings(job: Job, facts: dict[str, Any]) -> dict[str, str]:
    """Return the header's rows about how the run trains."""
    config = job.config
    run = f"strategy {config.strategy}, seed {config.seed}, {config.dtype}"
    named = RECIPES[config.recipe].config
    if (config.dataset, config.model) == (named.dataset, named.model):
        run = f"recipe {named.recipe}, {run}"
    batch = (
        f"{facts['global_batch_size']:,} over all devices, at most "
        f"{facts['per_device_batch_size']:,} on one"
    )
    if config.accumulate > 1:
        batch += f", in {config.accumulate} micro-batches"
    loss = name_of_loss(job.task.loss)
    augment: Any = job.task.augment
    if augment is not None:
        name = getattr(augment, "__qualname__", type(augment).__name__)
        loss += f" of examples changed by {name}"
    if job.task.classifies and config.label_smoothing:
        loss += ", smoothed in training alone"
    per_epoch = job.batches["train"].per_epoch
    return {
        "run": run,
        "devices": describe_devices(job),
        "batch": batch,
        "model": f"{config.model}, {facts['parameters']:,} parameters",
        "loss": loss,
        "updates": f"{job.total_steps:,}, {per_epoch:,} an epoch; {config.optimizer}, "
        f"{config.schedule}",
    }


def describe_devices(job: Job) -> str:
    """Describe the devices and the mesh, and say if more could have been simulated."""
    config = job.config
    text = describe(job.devices)
    if config.mesh or config.layout != "data":
        text += f", {job.layout.text}"
    is_one_cpu = len(job.devices) == 1 and job.devices[0].platform == "cpu"
    was_asked = config.devices or count_from_environment()
    if is_one_cpu and config.strategy != "single" and not was_asked:
        text += (
            ", with which JAX had started: call pmapdp.devices.simulate(8) before its "
            "first use for more"
        )
    return text


def describe_data(job: Job) -> str:
    """Describe the data set and its parts."""
    texts = [job.config.dataset]
    for name, part in job.batches.items():
        text = f"{part.examples:,} to {USES[name]}"
        if part.is_weighted:
            text += " (weighted)"
        texts.append(text)
    if job.data_fingerprint:
        texts.append(f"content {job.data_fingerprint}")
    return ", ".join(texts)


def describe_start(job: Job) -> str:
    """Say who started how many processes, and with which versions."""
    count = job.processes.count
    unit = "process" if count == 1 else "processes"
    versions = f"jax {jax.__version__}, Python {platform.python_version()}"
    return f"{job.processes.launcher}, {count} {unit}, {versions}"


def name_of_loss(loss: Any) -> str:
    """Name a loss with its settings, as in `cross_entropy(label_smoothing=0.1)`."""
    if not isinstance(loss, functools.partial):
        return getattr(loss, "__qualname__", type(loss).__name__)
    settings = []
    for name, value in loss.keywords.items():
        if value:
            settings.append(f"{name}={getattr(value, '__name__', value)}")
    return f"{name_of_loss(loss.func)}({', '.join(settings)})"


def in_words(results: dict[str, float]) -> list[str]:
    """Return a part's metrics for the screen, as `loss 0.1234`, `accuracy 0.9876`."""
    metrics = {name: x for name, x in results.items() if name != "examples"}
    return [f"{name} {value:.4f}" for name, value in metrics.items()]
