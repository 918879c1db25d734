"""Resume, save, show and stop a run, around its updates. Lesson 14 teaches this file.

The loop in `pmapdp/train.py` calls `restore_or_init`, `after_update`, `end_epoch` and
`end`, in this order.
"""

import contextlib
import dataclasses
import functools
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

from pmapdp.data.batches import Batches
from pmapdp.distributed import make_global
from pmapdp.errors import DIVERGED_ADVICE, DivergedError, StoppedError
from pmapdp.job import Job
from pmapdp.metrics import ACCURACIES, Meter
from pmapdp.run.checkpoints import Checkpoints, load_weights
from pmapdp.run.report import Reporter, read_epochs
from pmapdp.run.signals import StopRequest
from pmapdp.run.workdir import (
    identify_functions,
    identity,
    lock_workdir,
    write_config,
)
from pmapdp.state import TrainState, create_state, is_finite, named_leaves
from pmapdp.steps.shared import gradient_sums

HUGE = 1e4  # times the median, beyond what differently scaled columns give
AfterEpoch = Callable[[dict[str, Any], TrainState], Any]


class Run:
    """A run of `job`. Each process saves its own shards, and only the first one prints and writes logs."""

    def __init__(
        self,
        job: Job,
        started: float,
        after_epoch: AfterEpoch | None,
        stack: contextlib.ExitStack,
    ):
        self.job, self.config, self.started, self.after_epoch = (
            job,
            job.config,
            started,
            after_epoch,
        )
        self.per_epoch, self.stack = job.batches["train"].per_epoch, stack
        self.compile_seconds: float | None = None
        # By number. An epoch that was stopped in its middle is there twice in the file.
        self.epochs: dict[int, dict[str, Any]] = {}
        self.best_state: Any = None  # on the host, if no checkpoint has it
        self.progress: dict[str, Any] = {
            "sums": {},
            "examples": 0,
            "best": {},
            "last": {},
        }
        self.checkpoints: Checkpoints | None = None
        if workdir := job.config.workdir:
            if job.peers.is_first:
                stack.enter_context(lock_workdir(workdir))
            job.peers.wait("the workdir")  # until process 0 has made its lock
            # If the folder isn't shared, only process 0 finds the file.
            job.peers.require_same(
                {f"--workdir {workdir}": Path(workdir, "pmapdp.lock").exists()}
            )
            self.identity = identity(job.config, job.content) | identify_functions(job)
            self.checkpoints = Checkpoints(
                Path(workdir, "checkpoints"), job.config.keep_checkpoints
            )
            stack.callback(self.checkpoints.close)
        self.stop = StopRequest(job.peers, stack)
        stack.enter_context(job.peers.exit_on_error())

    def restore_or_init(self) -> tuple[TrainState, int]:
        """Return the state on the devices and the updates made, from a checkpoint, `--init-from` or the seed."""
        job, sharding = self.job, self.job.strategy.state_sharding
        if self.checkpoints and (steps := self.checkpoints.steps()):
            step = steps[-1]
            state, self.progress = self.checkpoints.read(
                step,
                job.task,
                self.identity,
                sharding,
                accept_changed_functions=self.config.accept_changed_functions,
            )
            event, news = "resume", f"restored from the checkpoint of step {step:,}"
            for results in read_epochs(self.checkpoints.folder.parent):
                if results["step"] <= step:
                    self.epochs[results["epoch"]] = results
        else:
            task, news = (
                load_weights(job.task, self.config.init_from)
                if self.config.init_from
                else (job.task, "")
            )
            state, step, event = create_state(task, sharding), 0, "init_from"
        if self.config.workdir and job.peers.is_first:
            write_config(self.config, self.config.workdir)
        self.report = Reporter(job, state, step, self.stack)
        if news:
            self.report.event(event, step=step)
            self.report.line(news)
        if self.config.draw_sharding and step == 0 and job.peers.is_first:
            labels = job.strategy.place_batch(
                next(job.batches["train"].epoch(0))
            ).labels
            print(f"labels {labels.shape} of the first batch on the devices:")
            jax.debug.visualize_array_sharding(labels)
        return state, step

    def is_done(self, step: int) -> bool:
        """Return True after the last update, or if the last `--patience` epochs were no better than the best."""
        last, patience = self.progress["last"], self.config.patience
        ended_early = (
            patience
            and last
            and last["epoch"] - self.progress["best"]["epoch"] >= patience
        )
        return step >= self.job.total_steps or bool(ended_early)

    def after_update(self, step: int, state: TrainState, meter: Meter) -> None:
        """Show the progress, and save or stop if it's time. The devices may still compute update `step`."""
        if (
            self.compile_seconds is None
        ):  # the first update, whose time counts as compiling
            meter.finish()
            self.compile_seconds = meter.seconds
            meter.start_clock()
        self.report.update(step, state, meter)
        stopping = self.stop.agree(step)
        if step % self.per_epoch == 0 or step == self.job.total_steps:
            meter.finish()
            self.report.log_losses(meter)
            return
        save_every = self.config.checkpoint_every
        if stopping or (save_every and step % save_every == 0):
            meter.finish()
            self.save(step, state, meter)
        if stopping:
            self.end_stopped(stopping, step, state)

    def end_epoch(
        self, step: int, state: TrainState, meter: Meter, tested: dict[str, float]
    ) -> None:
        """Report and save the results of an epoch, after which `state` was evaluated."""
        results: dict[str, Any] = {
            "epoch": (step - 1) // self.per_epoch + 1,
            "step": step,
            "train": meter.means,
            **({self.job.held_out: tested} if self.job.held_out else {}),
            "learning_rate": float(
                jax.device_get(self.job.schedule(jax.device_put(step - 1)))
            ),
            **meter.speed,
        }
        self.epochs[results["epoch"]] = results
        self.report.end_epoch(results)
        best = max(
            self.progress["best"] or results,
            results,
            key=lambda each: best_metric(each, self.config.best)[2],
        )
        self.progress |= {"best": best, "last": results}
        if self.chooses_best and not self.checkpoints and best is results:
            self.best_state = self.job.strategy.fetch(state)
        self.save(step, state, meter if step % self.per_epoch else Meter())
        if self.after_epoch is not None:
            self.after_epoch(dict(results), state)
        if self.stop.agreed and not self.is_done(step):
            self.end_stopped(self.stop.agreed, step, state)

    def save(self, step: int, state: TrainState, meter: Meter) -> None:
        """Save the state after update `step`. After an epoch `meter` is empty."""
        self.progress |= {"sums": meter.sums, "examples": meter.examples}
        if self.checkpoints:
            state = make_global(state, self.job.strategy.state_sharding)
            if not is_finite(state):
                raise DivergedError(
                    f"the state is not finite after step {step}: {DIVERGED_ADVICE}"
                )
            self.checkpoints.save(
                step, state, self.progress | {"belongs_to": self.identity}
            )

    @property
    def chooses_best(self) -> bool:
        """Return True if the run was asked for its best epoch."""
        return bool(self.config.best or self.config.patience)

    def fetch_result(self, state: TrainState) -> TrainState:
        """Copy the last state to the host, or the best epoch's if the run was asked for it."""
        best_step = self.progress["best"].get("step")
        if not self.chooses_best or best_step in (None, int(state.step)):
            return self.job.strategy.fetch(state)
        if not self.checkpoints:
            return self.best_state
        sharding = self.job.strategy.state_sharding
        best, _ = self.checkpoints.read(
            best_step,
            self.job.task,
            self.identity,
            sharding,
            accept_changed_functions=True,
        )
        return self.job.strategy.fetch(best)

    def end_stopped(
        self, number: signal.Signals, step: int, state: TrainState
    ) -> NoReturn:
        """End the run after update `step`, because a signal asked for it."""
        news = "nothing was kept; with --workdir runs/first a run can be resumed"
        if self.checkpoints:
            self.checkpoints.wait()
            news = f"a checkpoint is in {self.config.workdir}, and the same command resumes from it"
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
        best, last, lines = self.progress["best"], self.progress["last"], [""]
        if step < self.job.total_steps:
            why = f"the last {self.config.patience} were no better than the best"
            lines.append(f"ended after epoch {last['epoch']}: {why}")
        if best:
            part, name, _ = best_metric(best, self.config.best)
            epochs = f"best {best[part][name]:.4f} (epoch {best['epoch']}), last {last[part][name]:.4f}"
            lines.append(f"{part} {name}: {epochs}")
        seconds, compiling = (
            time.perf_counter() - self.started,
            self.compile_seconds or 0.0,
        )
        self.report.event(
            "end", steps=step, compile_seconds=compiling, total_seconds=seconds
        )
        self.report.line(
            *lines, f"{seconds:.1f} s in all, of which {compiling:.1f} s to compile"
        )


@contextlib.contextmanager
def open_run(
    job: Job, started: float, after_epoch: AfterEpoch | None = None
) -> Iterator[Run]:
    """Open the workdir, the checkpoints and the log of a run that began at `time.perf_counter() == started`."""
    with contextlib.ExitStack() as stack:
        try:
            yield Run(job, started, after_epoch, stack)
        except DivergedError as error:
            found = f": {find_first_not_finite(job, error.step)}" if error.step else ""
            message = f"{error.message}{found}"
            raise DivergedError(message, error.step, error.losses) from None


def find_first_not_finite(job: Job, step: int) -> str:
    """Say what is not finite in update `step` or in the one before, which made its parameters, or advise another rate.

    The loss and the gradients of single examples are looked at in the first update
    alone, whose parameters are known.
    """
    batches, state = job.batches["train"], create_state(job.task)
    compute = jax.jit(
        functools.partial(gradient_sums, dataclasses.replace(job.task, accumulate=1))
    )
    sizes: dict[int, float] = {}  # largest input of each example
    for update in range(max(step - 1, 1), step + 1):
        epoch, done = divmod(update - 1, batches.per_epoch)
        for row in batches.order(epoch)[done * batches.batch_size :][
            : batches.batch_size
        ].tolist():
            batch = Batches(batches.split, 1).read_batch(np.array([row]))
            values = {"the inputs are": batch.inputs, "the labels are": batch.labels}
            if update == 1 and not job.config.init_from:
                gradients, sums, _ = jax.device_get(compute(state, batch))
                values["the first loss is"] = sums.loss
                values |= {
                    f"the first gradient of {name} is": each
                    for name, each in named_leaves(gradients).items()
                }
            for name, value in values.items():
                if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(value)):
                    return f"{name} not finite for training example {row}, counted from 0: look at it, model and loss"
            sizes[row] = max(
                float(np.abs(leaf).max(initial=0))
                for leaf in jax.tree.leaves(batch.inputs)
            )
    largest = max(sizes, key=lambda row: sizes[row])
    if sizes[largest] > HUGE * np.median(list(sizes.values())):
        return (
            f"the inputs of training example {largest}, counted from 0, are up to "
            f"{sizes[largest]:.3g}, far above the others' of this update: look at it"
        )
    return f"{DIVERGED_ADVICE}, and look at the training examples of this update"


def keep_compiled_programs() -> None:
    """Let JAX keep compiled programs in `~/.cache/pmapdp/compiled`, or in the folder that you have set."""
    if jax.config.jax_compilation_cache_dir is None:  # type: ignore[attr-defined]
        with contextlib.suppress(
            OSError, RuntimeError
        ):  # some containers have no home; JAX would warn of each program
            cache = Path(
                os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache",
                "pmapdp",
                "compiled",
            )
            cache.mkdir(parents=True, exist_ok=True)
            jax.config.update("jax_compilation_cache_dir", str(cache))
    # Two processes that write the same entry make JAX warn, but the cache is optional.
    warnings.filterwarnings(
        "ignore", "Error (reading|writing) persistent compilation cache entry"
    )
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


def best_metric(results: dict[str, Any], best: str | None) -> tuple[str, str, float]:
    """Return the part of the data and the metric that decide which epoch is best, and its score (higher is better)."""
    part = next(part for part in ("validation", "test", "train") if part in results)
    accuracy = next(
        (f"highest:{name}" for name in ACCURACIES if name in results[part]),
        "lowest:loss",
    )
    order, _, name = (best or accuracy).partition(":")
    score = float(results[part][name])
    if order == "lowest":
        score = -score
    if np.isnan(score):
        score = -np.inf
    return part, name, score
