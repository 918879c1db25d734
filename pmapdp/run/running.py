"""The entrance to this room: a run from its start, or from its newest checkpoint, to its end.

Lesson 14 teaches this file. The loop in `pmapdp/train.py` calls the methods of `Run` in the order in which they stand
here.
"""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax

from pmapdp.errors import DivergedError, StoppedError, UserError, shown
from pmapdp.job import Job
from pmapdp.metrics import Meter, Totals
from pmapdp.run.best_epoch import better, chosen_metric, ends_early
from pmapdp.run.checkpoint import Checkpoint
from pmapdp.run.header import announce
from pmapdp.run.profile import Profiler
from pmapdp.run.replicas import Replicas
from pmapdp.run.report import Reporter
from pmapdp.run.resume import beginning, open_checkpoints, rolled_back
from pmapdp.run.stop_request import StopRequest
from pmapdp.run.workdir import write_config
from pmapdp.state import TrainState
from pmapdp.steps.placing import over_all_processes

AfterEpoch = Callable[[dict[str, Any], TrainState], Any]
ROLLBACKS = 3  # more would hide a run that cannot succeed


@contextlib.contextmanager
def running(job: Job, started: float, after_epoch: AfterEpoch | None = None) -> Iterator["Run"]:
    """A run of `job`, which begins here and is closed in the end. `started` is `time.perf_counter()` when the command
    began; `after_epoch` is called with the results of each epoch and the state."""
    if after_epoch is not None and not callable(after_epoch):
        raise UserError(f"after_epoch={shown(after_epoch)} is no function: give one of (results, state)")
    with contextlib.ExitStack() as stack:
        yield Run(job, started, stack, after_epoch)


class Run:
    """What a run keeps and shows, of several processes only on the first; `stack` closes it.

    Attributes:
        state: `TrainState` on the devices at the start, after the updates of earlier starts.
        step: updates made.
        end_step: updates after which the run ends.
        epochs: the metrics of every epoch of this start, as in the metrics file.

    Raises (in all methods):
        UserError: the workdir or the metrics file cannot be used for this run, or the disk takes no more.
        DivergedError: the loss is no longer finite; `roll_back` may take it.
        ReplicasError: the devices' copies of the state differ.
        StoppedError: SIGTERM, SIGINT or SIGHUP asked for it; with a workdir a checkpoint was written.
    """

    def __init__(self, job: Job, started: float, stack: contextlib.ExitStack, after_epoch: AfterEpoch | None = None):
        self.job, self.config, self.started, self.after_epoch = job, job.config, started, after_epoch
        self.epochs: list[dict[str, Any]] = []
        self.compile_seconds = 0.0
        self.checkpoints = open_checkpoints(job, stack)
        self.state, self.step, self.kept = beginning(job, self.checkpoints)
        if self.checkpoints is not None and job.peers.first:
            write_config(Path(str(job.config.workdir)), job.config, job.global_batch_size)
        self.end_step = self.step if ends_early(self.kept, job.config.patience) else job.total_steps
        self.report = Reporter(job.config, stack, first=job.peers.first)
        warnings = [] if self.checkpoints is None else self.checkpoints.warnings
        announce(self.report, job, Checkpoint(self.state, self.step, self.kept), warnings)
        self.replicas = Replicas(job, job.config.check_replicas)
        if self.replicas.text:
            self.report.line(self.replicas.text)
        self.stop = stack.enter_context(StopRequest(job.peers))
        profiles = job.config.workdir if job.config.profile and job.peers.first else None
        self.profiler = Profiler(Path(profiles) / "profile" if profiles else None)
        stack.enter_context(job.peers.failing_together())
        self.replicas.require_equal(self.step, self.state)  # compiles, before anything is timed

    def start_epoch(self, step: int) -> None:
        """The epoch that update `step + 1` belongs to begins, or is resumed."""
        job = self.job
        self.epoch, done = divmod(step, job.train_batches.per_epoch)
        self.end_of_epoch = min((self.epoch + 1) * job.train_batches.per_epoch, job.total_steps)
        self.meter, self.trained = Meter(Totals(**self.kept["totals"])), 0.0
        self.report.start_epoch(self.epoch + 1, job.train_batches.per_epoch, done)

    def before_update(self, step: int) -> None:
        """Update `step` is about to be started."""
        self.stop.begin(step)

    def after_update(self, step: int, state: TrainState, sums: Any) -> None:
        """Update `step` was started; the devices may still compute `state` and `sums`."""
        self.step = step
        self.meter.add(step, sums, self.job.train_batches.examples_in(step - 1))
        if self.compile_seconds == 0:  # traced and compiled just now: not timed
            self.replicas.require_same_update(state)
            self.compile_seconds += self.meter.restart_clock()
        self.report.step(step - self.epoch * self.job.train_batches.per_epoch, self.meter)
        self.report.lines(self.profiler.after_update(state))
        if step == self.end_of_epoch:
            self.meter.finish()
            self.report.end_epoch()
            self.trained = time.perf_counter()
            return
        stopping = bool(self.stop)  # asked once: a signal may come at any moment
        keeping = stopping or self.is_due(self.config.checkpoint_every)
        if keeping or self.is_due(self.config.check_replicas):
            self.replicas.require_equal(step, state)
        if keeping:
            self.keep(state, self.meter.finish())
        if stopping:
            self.end_stopped(state)

    def is_due(self, every: int | None) -> bool:
        """Whether something that is done after every so many updates is to be done now."""
        return every is not None and self.step % every == 0

    def end_epoch(self, step: int, state: TrainState, tested: Totals) -> None:
        """The epoch has ended, after update `step`, and `state` was evaluated: `tested`."""
        self.replicas.require_equal(step, state)
        if not self.epochs:
            self.compile_seconds += time.perf_counter() - self.trained
        trained, meter = self.meter.totals, self.meter
        skipped = sum(last - first + 1 for first, last in self.kept["skipped"])
        with jax.transfer_guard("allow"):
            learning_rate = float(self.job.schedule(step - 1 - skipped))
        results = {
            "epoch": self.epoch + 1,
            "step": step,
            **trained.means("train_"),
            "train_examples": trained.examples,
            **tested.means(f"{self.job.measured}_"),
            **({f"{self.job.measured}_examples": tested.examples} if tested.examples else {}),
            "learning_rate": learning_rate,
            "examples_per_second": meter.examples_per_second,
            "step_ms": meter.step_ms,
        }
        self.epochs.append(results)
        self.report.results(results)
        if not self.kept["best"] or better(results, self.kept["best"], self.config.best):
            self.kept["best"] = results
        self.kept["last"] = results
        self.keep(state, trained if step % self.job.train_batches.per_epoch else Totals())
        if ends_early(self.kept, self.config.patience):
            self.end_step = step
        if self.after_epoch is not None:
            self.after_epoch(dict(results), state)
        if self.stop:
            self.end_stopped(state)

    def keep(self, state: TrainState, totals: Totals) -> None:
        """Keep the state after update `self.step`; `totals` are those of the unfinished epoch."""
        self.kept["totals"] = dataclasses.asdict(totals)
        if self.checkpoints is not None:
            state = over_all_processes(state, self.job.strategy.state_sharding)
            self.checkpoints.save(self.step, state, self.kept)

    def roll_back(self, error: DivergedError) -> tuple[TrainState, int]:
        """Where to go on after a loss that is not finite: the state of the last checkpoint (`rolled_back`), and the
        step of that loss. Raises `error` where nobody asked for this, or it was done three times, or no checkpoint is
        finite. The state is kept at once, so a run that is resumed skips the same batches. An epoch whose last batch is
        skipped has no results.
        """
        if self.config.on_nan == "stop" or self.checkpoints is None or len(self.kept["skipped"]) == ROLLBACKS:
            raise error
        self.report.end_epoch()
        self.step = self.step if self.trained else error.step  # the loss of the test set, or of an update
        found = rolled_back(self.job, self.checkpoints, self.kept["skipped"], self.step)
        self.report.lines(self.checkpoints.warnings)
        if found is None:
            raise error
        self.kept = found.progress
        first, last = self.kept["skipped"][-1]
        self.report.line(
            f"warning: the loss is not finite at step {last:,}: rollback {len(self.kept['skipped'])} of {ROLLBACKS} to "
            f"the state of step {found.step:,}; the batches of steps {first:,} to {last:,} are skipped"
        )
        self.report.event("rollback", step=last, restored=found.step, skipped=[first, last])
        self.keep(found.state, Totals(**self.kept["totals"]))
        return found.state, self.step

    def end_stopped(self, state: TrainState) -> NoReturn:
        """End the run after update `self.step` because a signal asked for it."""
        assert self.stop.signal is not None
        if self.checkpoints is not None:
            self.checkpoints.wait()
        workdir, number = self.config.workdir, self.stop.signal
        kept = (
            f"a checkpoint is in {workdir}, and the same command resumes from it"
            if workdir is not None
            else "nothing was kept; with --workdir runs/first a run can be resumed"
        )
        left = self.job.strategy.fetch(state) if workdir is None else None
        raise StoppedError(f"stopped by {number.name} after step {self.step:,}: {kept}", 128 + number.value, left)

    def end(self, step: int) -> None:
        """All updates are made: say so, when the last checkpoint is on the disk."""
        self.report.lines(self.profiler.stop())
        if self.checkpoints is not None:
            self.checkpoints.wait()
        if step < self.job.total_steps:
            last = self.kept["last"]["epoch"]
            self.report.line(f"ended after epoch {last}: the last {self.config.patience} were no better than the best")
        seconds = time.perf_counter() - self.started
        self.report.event("end", steps=step, compile_seconds=self.compile_seconds, total_seconds=seconds)
        best, last = self.kept["best"], self.kept["last"]
        key = chosen_metric(best, self.config.best)[1] if best else ""
        self.report.end(best, last, key, self.compile_seconds, seconds)
