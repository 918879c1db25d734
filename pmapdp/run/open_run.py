"""Resume, save, show and stop a run, around its updates. Lesson 14 teaches this file.

The loop in `pmapdp/train.py` says when.
"""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from pmapdp.distributed import make_global
from pmapdp.errors import DIVERGED_ADVICE, DivergedError, StoppedError
from pmapdp.job import Job
from pmapdp.metrics import ACCURACIES, Meter
from pmapdp.run.checkpoints import Checkpoints, load_weights
from pmapdp.run.not_finite import find_first_not_finite
from pmapdp.run.report import Reporter, read_epochs
from pmapdp.run.signals import StopRequest
from pmapdp.run.workdir import (
    fixed_settings,
    hash_functions,
    lock_workdir,
    write_config,
)
from pmapdp.state import TrainState, create_state, is_finite


class Run:
    """Restores, saves, reports and stops the run of a job.

    Each process saves its own shards, and only the first one prints and writes logs.
    """

    def __init__(self, job: Job, started: float, stack: contextlib.ExitStack):
        self.job = job
        self.config = job.config
        self.started = started
        self.stack = stack
        self.per_epoch = job.batches["train"].per_epoch
        self.compile_seconds: float | None = None
        self.saved_step: int | None = None  # the newest that this process has saved
        # By number. An epoch that was stopped in its middle is there twice in the file.
        self.epochs: dict[int, dict[str, Any]] = {}
        self.best_state: Any = None  # on the host, if no checkpoint has it
        self.epoch_progress: dict[str, Any] = {
            "sums": {},
            "examples": 0,
            "best": {},
            "last": {},
        }
        self.checkpoints: Checkpoints | None = None
        if job.config.workdir:
            folder = Path(job.config.workdir)
            if job.processes.is_first:
                stack.enter_context(lock_workdir(job.config.workdir))
            job.processes.wait("the workdir")  # until process 0 has made its lock
            # If the folder isn't shared, only process 0 finds the file.
            has_lock = (folder / "pmapdp.lock").exists()
            job.processes.require_same({f"--workdir {folder}": has_lock})
            self.fixed_settings = fixed_settings(
                job.config, job.data_fingerprint
            ) | hash_functions(job)
            keep = job.config.keep_checkpoints
            self.checkpoints = Checkpoints(folder / "checkpoints", keep)
            stack.callback(self.checkpoints.close)
        self.stop_request = StopRequest(job.processes, stack)
        stack.enter_context(job.processes.exit_on_error())

    def restore_or_init(self) -> tuple[TrainState, int]:
        """Return the state on the devices, and how many updates it has made.

        It comes from the newest checkpoint, else from `--init-from`, else the seed.
        """
        # --init-from is for the first start. Later there are checkpoints.
        if self.checkpoints and self.checkpoints.steps():
            step = self.checkpoints.steps()[-1]
            state = self.restore(self.checkpoints, step)
            event = "resume"
            news = f"restored from the checkpoint of step {step:,}"
        else:
            step = 0
            state, news = self.init()
            event = "init_from"
        # After the checkpoint was accepted, so that a refused run changes nothing.
        if self.config.workdir and self.job.processes.is_first:
            write_config(self.config, self.config.workdir)
        self.report = Reporter(self.job, state, step, self.stack)
        if news:
            self.report.event(event, step=step)
            self.report.line(news)
        if self.config.draw_sharding and step == 0:
            self.report.draw_first_batch(self.job)
        self.report.start_progress(step)  # last, because a drawing would break the bar
        return state, step

    def restore(self, checkpoints: Checkpoints, step: int) -> TrainState:
        """Return the state of a checkpoint, and take over its progress."""
        state, self.epoch_progress = checkpoints.read(
            step,
            self.job.task,
            self.fixed_settings,
            self.job.strategy.state_sharding,
            accept_changed_functions=self.config.accept_changed_functions,
        )
        # A run that was killed may have reported epochs that it has to make again.
        for results in read_epochs(checkpoints.folder.parent):
            if results["step"] <= step:
                self.epochs[results["epoch"]] = results
        return state

    def init(self) -> tuple[TrainState, str]:
        """Return the state before the first update, and a line about its weights."""
        task = self.job.task
        news = ""
        if self.config.init_from:
            task, news = load_weights(task, self.config.init_from)
        return create_state(task, self.job.strategy.state_sharding), news

    def open_meter(self) -> Meter:
        """Return the meter of an epoch. It isn't empty if the epoch is resumed."""
        return Meter(
            self.epoch_progress["sums"],
            self.epoch_progress["examples"],
            is_weighted=self.job.batches["train"].is_weighted,
        )

    def is_done(self, step: int) -> bool:
        """Return True after the last update, or if patience has run out.

        That's so if the last `--patience` epochs were no better than the best.
        """
        if step >= self.job.total_steps:
            return True
        last = self.epoch_progress["last"]
        if not self.config.patience or not last:
            return False
        return (
            last["epoch"] - self.epoch_progress["best"]["epoch"] >= self.config.patience
        )

    def show_update(self, step: int, state: TrainState, meter: Meter) -> None:
        """Show the progress. The devices may still compute update `step`."""
        # The first update's time counts as compiling.
        if self.compile_seconds is None:
            meter.finish()
            self.compile_seconds = meter.seconds
            meter.start_clock()
        self.report.update(step, state, meter)

    def end_epoch(
        self, step: int, state: TrainState, meter: Meter, tested: dict[str, float]
    ) -> dict[str, Any]:
        """Report the results of an epoch, after which `state` was evaluated.

        Returns:
            The results, as in the metrics file.
        """
        results: dict[str, Any] = {
            "epoch": (step - 1) // self.per_epoch + 1,
            "step": step,
            "train": meter.means,
        }
        if self.job.evaluated_part:
            results[self.job.evaluated_part] = tested
        # The rate of the update that was made last, not of the next one.
        learning_rate = self.job.schedule(jax.device_put(step - 1))
        results["learning_rate"] = float(jax.device_get(learning_rate))
        results |= meter.speed
        self.report.log_losses(meter)
        self.epochs[results["epoch"]] = results
        self.report.end_epoch(results)
        best = self.epoch_progress["best"]
        if not best or self.score(results) > self.score(best):
            best = results
            if self.chooses_best and not self.checkpoints:
                self.best_state = self.job.strategy.fetch(state)
        self.epoch_progress |= {"best": best, "last": results}
        return dict(results)

    def score(self, results: dict[str, Any]) -> float:
        """Return how good an epoch was. Higher is better."""
        return best_metric(results, self.config.best)[2]

    def save(self, step: int, state: TrainState, meter: Meter) -> None:
        """Save the state after update `step`, unless that was done before."""
        if step == self.saved_step:
            return
        self.saved_step = step
        # The sums of an epoch that is still open are saved, too, so that a resumed run
        # has its means over all examples. Those of one that is over are in `last`.
        meter.finish()
        is_open = step % self.per_epoch != 0
        self.epoch_progress["sums"] = meter.sums if is_open else {}
        self.epoch_progress["examples"] = meter.examples if is_open else 0
        if self.checkpoints:
            state = make_global(state, self.job.strategy.state_sharding)
            # A run that resumed from a NaN would end at once, every time.
            if not is_finite(state):
                raise DivergedError(
                    f"the state is not finite after step {step}: {DIVERGED_ADVICE}"
                )
            self.checkpoints.save(
                step, state, self.epoch_progress | {"belongs_to": self.fixed_settings}
            )

    @property
    def chooses_best(self) -> bool:
        """Return True if the run was asked for its best epoch."""
        return bool(self.config.best or self.config.patience)

    def fetch_result(self, state: TrainState) -> TrainState:
        """Copy the last state to the host, or the best epoch's if that's asked for."""
        best_step = self.epoch_progress["best"].get("step")
        if not self.chooses_best or best_step in (None, int(state.step)):
            return self.job.strategy.fetch(state)
        if not self.checkpoints:
            return self.best_state  # copied to the host when that epoch ended
        sharding = self.job.strategy.state_sharding
        best, _ = self.checkpoints.read(
            best_step,
            self.job.task,
            self.fixed_settings,
            sharding,
            accept_changed_functions=True,
        )
        return self.job.strategy.fetch(best)

    def raise_stopped(
        self, number: signal.Signals, step: int, state: TrainState
    ) -> NoReturn:
        """End the run after update `step`, because a signal asked for it."""
        news = "nothing was kept; with --workdir runs/first a run can be resumed"
        if self.checkpoints:
            self.checkpoints.wait()
            news = (
                f"a checkpoint is in {self.config.workdir}, and the same command "
                "resumes from it"
            )
        # Without a folder the caller gets the state, so that nothing is lost.
        unsaved = None if self.checkpoints else self.job.strategy.fetch(state)
        raise StoppedError(
            f"stopped by {number.name} after step {step:,}: {news}",
            128 + number,
            unsaved,
        )

    def end(self, step: int) -> None:
        """Wait until the last checkpoint is on the disk, and report the end."""
        self.report.end_trace()
        if self.checkpoints:
            self.checkpoints.wait()
        best = self.epoch_progress["best"]
        last = self.epoch_progress["last"]
        lines = [""]
        if step < self.job.total_steps:
            why = f"the last {self.config.patience} were no better than the best"
            lines.append(f"ended after epoch {last['epoch']}: {why}")
        if best:
            part, name, _ = best_metric(best, self.config.best)
            lines.append(
                f"{part} {name}: best {best[part][name]:.4f} (epoch {best['epoch']}), "
                f"last {last[part][name]:.4f}"
            )
        seconds = time.perf_counter() - self.started
        compiling = self.compile_seconds or 0.0
        self.report.event(
            "end", steps=step, compile_seconds=compiling, total_seconds=seconds
        )
        total = f"{seconds:.1f} s in all, of which {compiling:.1f} s to compile"
        if last and last["examples_per_second"]:
            total += f"; last epoch {last['examples_per_second']:,.0f} examples/s"
        lines.append(total)
        self.report.line(*lines)


@contextlib.contextmanager
def open_run(job: Job, started: float) -> Iterator[Run]:
    """Open the workdir, the checkpoints and the log of a run.

    It began when `time.perf_counter()` was `started`.
    """
    with contextlib.ExitStack() as stack:
        try:
            yield Run(job, started, stack)
        except DivergedError as error:
            message = error.message
            if error.step:
                message += f": {find_first_not_finite(job, error.step)}"
            raise DivergedError(message, error.step, error.losses) from None


def best_metric(results: dict[str, Any], best: str | None) -> tuple[str, str, float]:
    """Return the part and the metric that decide which epoch is best, and its score.

    A higher score is better.
    """
    part = next(part for part in ("validation", "test", "train") if part in results)
    if best is None:
        best = "lowest:loss"
        for accuracy in ACCURACIES:
            if accuracy in results[part]:
                best = f"highest:{accuracy}"
                break
    order, _, name = best.partition(":")
    score = float(results[part][name])
    if order == "lowest":
        score = -score
    # NaN compares False with everything, so a first epoch of NaN would stay the best.
    if np.isnan(score):
        score = -np.inf
    return part, name, score
