"""The entrance to this room: a run from its start, or from its newest checkpoint, to its end.

The loop in `pmapdp/train.py` calls the methods of `Run` in the order in which they stand here.
"""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from pmapdp.errors import DivergedError, StoppedError
from pmapdp.job import Job
from pmapdp.metrics import Meter, Totals
from pmapdp.run.header import facts, header
from pmapdp.run.log import LinesFile
from pmapdp.run.profile import Profiler
from pmapdp.run.replicas import Replicas
from pmapdp.run.resume import Keeper, Progress
from pmapdp.run.screen import Report
from pmapdp.signals import listening
from pmapdp.state import TrainState
from pmapdp.steps.placing import place

ROLLBACKS = 3  # more would hide a run that cannot succeed


@contextlib.contextmanager
def running(job: Job, settings: dict[str, Any], started: float) -> Iterator["Run"]:
    """A run with these settings (JSON), which begins here and is closed in the end. `started` is `time.perf_counter()`
    when the command began."""
    with contextlib.ExitStack() as stack:
        yield Run(job, settings, started, stack)


class Run:
    """What a run keeps and shows, of several processes only on the first; `stack` closes it.

    Attributes:
        state: `TrainState` on the devices at the start, after the updates of earlier starts.
        step: updates made.
        epochs: the metrics of every epoch of this start, as in the metrics file.

    Raises (in all methods):
        UserError: the workdir or the metrics file cannot be used for this run, or the disk takes no more.
        DivergedError: the loss is no longer finite; `roll_back` may take it.
        ReplicasError: the devices' copies of the state differ.
        StoppedError: SIGTERM or SIGINT asked for it; with a workdir a checkpoint was written.
    """

    def __init__(self, job: Job, settings: dict[str, Any], started: float, stack: contextlib.ExitStack):
        self.job, self.settings, self.started = job, settings, started
        self.epochs: list[dict[str, Any]] = []
        self.compile_seconds = 0.0
        self.keeper = Keeper(job, settings, stack)
        progress = self.keeper.begin()
        self.state, self.step, self.totals = progress.state, progress.step, progress.totals
        self.best, self.last, self.skipped = progress.best, progress.last, progress.skipped
        self.replicas = Replicas(job, settings["check_replicas"])

        writes = job.peers.first
        folder = Path(settings["workdir"]) if settings["workdir"] is not None and writes else None
        log, self.tensorboard, self.files = None, None, []
        if settings["metrics_file"] and writes:
            file = LinesFile(settings["metrics_file"], f"--metrics-file {settings['metrics_file']}")
            self.files.append(stack.enter_context(contextlib.closing(file)))
        if folder:
            self.files.append(stack.enter_context(contextlib.closing(LinesFile(folder / "metrics.jsonl"))))
            log = stack.enter_context(contextlib.closing(LinesFile(folder / "log.txt")))
            from pmapdp.run.tensorboard import TensorBoard  # its library takes a while to import

            self.tensorboard = stack.enter_context(contextlib.closing(TensorBoard(folder, self.step)))
        shown = settings["progress"] and writes
        self.report = Report(progress=shown, epochs=settings["epochs"], log=log, quiet=not writes)
        stack.callback(self.report.end_epoch)
        self.line = self.report.line

        self.event("start", **settings | facts(job, self.state))
        if self.step:
            self.event("resume", step=self.step)
        self.show(header(job, self.state, settings))
        self.show(self.keeper.messages)
        if self.replicas.every:
            self.line(self.replicas.text)
        self.stop = stack.enter_context(listening(job.peers.agreement))
        self.profiler = Profiler(folder / "profile" if folder and settings["profile"] else None)
        stack.enter_context(job.peers.failing_together())
        self.replicas.require_equal(self.step, self.state)  # compiles, before anything is timed

    def show(self, lines: list[str]) -> None:
        """Print lines, and take them out of the list."""
        while lines:
            self.line(lines.pop(0))

    def event(self, name: str, **values: Any) -> None:
        """Append an event to the metrics files."""
        for file in self.files:
            file.event(name, **values)

    def start_epoch(self, step: int) -> None:
        """The epoch that update `step + 1` belongs to begins, or goes on."""
        job = self.job
        self.epoch, done = divmod(step, job.train_batches.steps)
        self.end_of_epoch = min((self.epoch + 1) * job.train_batches.steps, job.total_steps)
        self.meter, self.trained = Meter(self.totals), 0.0
        self.report.start_epoch(self.epoch + 1, job.train_batches.steps, done)

    def before_updates(self, step: int) -> None:
        """The updates up to `step` are about to be started."""
        self.stop.begin(step)

    def after_updates(self, step: int, state: TrainState, sums: Any) -> None:
        """The updates up to `step` were started; the devices may still compute `state` and `sums`."""
        before, self.step = self.step, step
        self.meter.add(step, sums, self.job.train_batches.examples_between(before, step), step - before)
        if self.compile_seconds == 0:  # traced and compiled just now: not timed
            self.compile_seconds += self.meter.restart_clock()
        self.report.step(step - self.epoch * self.job.train_batches.steps, self.meter)
        self.show(self.profiler.after_updates(step - before, state))
        if step == self.end_of_epoch:
            self.meter.finish()
            self.report.end_epoch()
            self.trained = time.perf_counter()
            return
        if self.is_due("check_replicas"):
            self.replicas.require_equal(step, state)
        stopping = bool(self.stop)  # asked once: a signal may come at any moment
        if stopping or self.is_due("checkpoint_every"):
            self.keep(state, self.meter.finish())
        if stopping:
            self.end_stopped()

    def is_due(self, setting: str) -> bool:
        """Whether something that is done after every so many updates is to be done now."""
        every = self.settings[setting]
        return every is not None and self.step % every == 0

    def end_epoch(self, step: int, state: TrainState, tested: Totals) -> None:
        """The epoch has ended, after update `step`, and `state` was evaluated: `tested`."""
        self.replicas.require_equal(step, state)
        if not self.epochs:
            self.compile_seconds += time.perf_counter() - self.trained
        trained, meter = self.meter.totals, self.meter
        with jax.transfer_guard("allow"):
            learning_rate = float(self.job.schedule(step - 1 - sum(last - first + 1 for first, last in self.skipped)))
        results = {
            "epoch": self.epoch + 1,
            "step": step,
            "train_loss": trained.mean_loss,
            "train_accuracy": trained.accuracy,
            "train_examples": trained.count,
            "test_loss": tested.mean_loss,
            "test_accuracy": tested.accuracy,
            "test_examples": tested.count,
            "learning_rate": learning_rate,
            "examples_per_second": meter.examples_per_second,
            "images_per_second": meter.examples_per_second,  # its former name, for programs that read it
            "step_ms": meter.step_ms,
        }
        self.epochs.append(results)
        self.event("epoch", **results)
        self.report.results(results)
        if self.tensorboard:
            self.tensorboard.epoch(results)
        self.last = results
        if not self.best or results["test_accuracy"] > self.best["test_accuracy"]:
            self.best = results
        whole = step == (self.epoch + 1) * self.job.train_batches.steps
        self.totals = Totals() if whole else trained
        self.keep(state, self.totals)
        if self.stop:
            self.end_stopped()

    def keep(self, state: TrainState, totals: Totals) -> None:
        """Keep the state after update `self.step`; `totals` are those of the unfinished epoch."""
        self.replicas.require_equal(self.step, state)
        self.keeper.keep(Progress(state, self.step, totals, self.best, self.last, self.skipped))

    def roll_back(self, error: DivergedError) -> tuple[TrainState, int]:
        """Where to go on after a loss that is not finite: the state of the last checkpoint, and the step of that loss.
        Raises `error` where nobody asked for this, or it was done three times, or no checkpoint is finite.

        The batches between the two are skipped, as Chowdhery et al., "PaLM", 2022, did, because an earlier batch than
        the one that shows it may have caused it. They count as steps, but not in the optimizer's schedule. The state is
        kept at once, so a run that is resumed skips the same. An epoch whose last batch is skipped has no results.
        """
        if self.settings["on_nan"] == "stop" or len(self.skipped) == ROLLBACKS:
            raise error
        self.report.end_epoch()
        self.step = self.step if self.trained else error.step  # the loss of the test set, or of an update
        # A checkpoint that is there because somebody stopped the run is passed over: the result must not depend on it.
        steps, every = self.job.train_batches.steps, self.settings["checkpoint_every"] or self.job.total_steps
        regular = [(self.step - 1) // each * each for each in (steps, every)]
        found = self.keeper.last_finite(max(*regular, *(last for _, last in self.skipped)))
        self.show(self.keeper.messages)
        if found is None:
            raise error
        first = found.step + 1
        self.skipped = [*self.skipped, [first, self.step]]
        self.totals = found.totals if found.step // steps == self.step // steps else Totals()
        self.best, self.last = found.best, found.last
        self.line(
            f"warning: the loss is not finite at step {self.step:,}: rollback {len(self.skipped)} of {ROLLBACKS} to "
            f"the state of step {found.step:,}; the batches of steps {first:,} to {self.step:,} are skipped"
        )
        self.event("rollback", step=self.step, restored=found.step, skipped=[first, self.step])
        step = place(np.int32(self.step), found.state.step.sharding)
        state = dataclasses.replace(found.state, step=step)
        self.keep(state, self.totals)
        return state, self.step

    def end_stopped(self) -> NoReturn:
        """End the run because a signal asked for it."""
        assert self.stop.signal is not None
        self.keeper.wait()
        workdir, number = self.settings["workdir"], self.stop.signal
        kept = (
            f"a checkpoint is in {workdir}, and the same command resumes from it"
            if workdir is not None
            else "nothing was kept; with --workdir runs/first a run can go on"
        )
        raise StoppedError(f"stopped by {number.name} after step {self.step:,}: {kept}", 128 + number.value)

    def end(self, step: int) -> None:
        """All updates are made: say so, when the last checkpoint is on the disk."""
        self.show(self.profiler.stop())
        self.keeper.wait()
        seconds = time.perf_counter() - self.started
        self.event("end", steps=step, compile_seconds=self.compile_seconds, total_seconds=seconds)
        self.report.end(self.best, self.last, self.compile_seconds, seconds)
