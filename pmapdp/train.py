"""Train a network: data, model, step, loop, evaluation.

    python -m pmapdp.train                               # digits, 8 devices
    python -m pmapdp.train --strategy jit --devices 4    # split by the compiler
    python -m pmapdp.train mirrored --workdir runs/first  # again: it resumes
    srun python -m pmapdp.train --distributed            # several processes

Lesson 14 teaches this file.
"""

import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import optax
from flax import nnx

from pmapdp import cli
from pmapdp.config import Config
from pmapdp.data.batches import Batch, Batches
from pmapdp.distributed import (
    Processes,
    ProcessesOptions,
    connect_processes,
    find_processes,
)
from pmapdp.errors import DIVERGED_ADVICE, DivergedError
from pmapdp.job import CustomParts, Job, make_job, rebuild_task
from pmapdp.loss import MetricSums
from pmapdp.metrics import Meter
from pmapdp.recipes import compare_with_reported, require_recipe
from pmapdp.registry import require_python_values
from pmapdp.run.checkpoints import load_state
from pmapdp.run.compile_cache import keep_compiled_programs
from pmapdp.run.open_run import Run, open_run
from pmapdp.run.workdir import read_config, with_full_paths
from pmapdp.state import TrainState, is_finite
from pmapdp.steps.placing import prefetch

AfterEpoch = Callable[[dict[str, Any], TrainState], Any]


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        state: The last one on the host, or with `best` or `patience` the best epoch's.
        epochs: The results of each epoch of the run, as in its metrics file:
            `{"epoch": 1, "step": 23, "train": {"loss": ..., "accuracy": ...,
            "examples": 1437}, "test": {...}, ...}`.
    """

    state: TrainState
    epochs: list[dict[str, Any]]


def train(
    config: Config,
    *,
    model: Callable[..., nnx.Module] | None = None,
    data: Any = None,
    loss: Callable[..., MetricSums] | None = None,
    metrics: Callable[..., dict[str, Any]] | None = None,
    optimizer: Callable[..., optax.GradientTransformation] | None = None,
    schedule: optax.Schedule | None = None,
    trainable: Any = None,
    after_epoch: AfterEpoch | None = None,
    processes: Processes | None = None,
) -> Result:
    """Run `config` from start to end, or resume the run in its workdir.

    Args:
        config: The settings.
        model: Builds your network, in place of the one that the configuration names;
            see `pmapdp.state.build`.
        data: Your data set; see `pmapdp.custom.data.make_data_set`.
        loss: Your loss, in place of `model.loss` or the cross-entropy; see `Task.loss`.
        metrics: For a classifier, a function of (logits, batch) that returns further
            sums by name.
        optimizer: A function of the schedule that returns an optimizer of Optax, for
            example `optax.lion`.
        schedule: A function of the number of updates made that returns the learning
            rate.
        trainable: The parameters to train, by a filter of Flax or names. The others
            stay fixed, even with weight decay.
        after_epoch: Called after each epoch as after_epoch(results, state). The state
            is on the devices, and the next update overwrites it, so copy what you keep.
            With several processes, each one calls it.
        processes: The processes that take part; all call this function alike. Default:
            those that the program has connected by `jax.distributed.initialize`.

    Returns:
        The state and the results of each epoch.

    Raises:
        UserError: The configuration doesn't fit the machine, the data or the workdir,
            training diverged, or a file can't be written.
        StoppedError: SIGTERM, SIGINT or SIGHUP (in a notebook: its stop button) stopped
            the run. With a workdir a checkpoint was written, without one the error's
            `state` has the state.
    """
    started = time.perf_counter()  # the run's last line says how long it all took
    custom = CustomParts(model, data, loss, metrics, optimizer, schedule, trainable)
    processes = processes or find_processes(config)
    # Your code may change the current folder, so relative paths wouldn't do.
    config = with_full_paths(config, is_first=processes.is_first)
    require_recipe(config)
    if config.compile_cache:
        keep_compiled_programs()
    # Only a float64 run uses 64 bits, whatever the caller has set, because with them
    # JAX's random numbers change.
    with jax.enable_x64(config.dtype == "float64"):
        job = make_job(config, custom, processes)
        with open_run(job, started) as run:
            state, step = run.restore_or_init()
            while not run.is_done(step):
                state, step = train_epoch(job, run, state, step, after_epoch)
            run.end(step)
            epochs = list(run.epochs.values())
            per_epoch = job.batches["train"].per_epoch
            run.report.line(*compare_with_reported(job.config, epochs, per_epoch))
            return Result(run.fetch_result(state), epochs)


def train_epoch(
    job: Job, run: Run, state: TrainState, step: int, after_epoch: AfterEpoch | None
) -> tuple[TrainState, int]:
    """Train from update `step` to the end of its epoch, or of the run.

    Returns:
        The state and the number of updates made.
    """
    strategy = job.strategy  # its functions are in steps/ or sharding/
    batches = job.batches["train"]
    meter = run.open_meter()  # not empty if the epoch is resumed
    host_batches = rest_of_epoch(batches, step, job.total_steps)
    with prefetch(host_batches, strategy.place_batch) as placed_batches:
        for batch in placed_batches:
            # This returns before the devices have computed anything, so the host can
            # start the next update meanwhile.
            state, sums = strategy.train_step(state, batch)
            meter.add(step + 1, sums, batches.examples_in(step))
            step += 1
            run.show_update(step, state, meter)
            if step % batches.per_epoch == 0 or step == job.total_steps:
                meter.finish()  # the evaluation isn't part of its time
                tested = evaluate(job, state, job.evaluated_part)
                results = run.end_epoch(step, state, meter, tested)
                run.save(step, state, meter)
                if after_epoch is not None:
                    after_epoch(results, state)
            elif is_due(step, job.config.checkpoint_every):
                run.save(step, state, meter)
            stop = run.stop_request.agree(step)
            if stop and not run.is_done(step):
                run.save(step, state, meter)  # if that isn't done yet
                run.raise_stopped(stop, step, state)
    return state, step


def rest_of_epoch(batches: Batches, step: int, total_steps: int) -> Iterator[Batch]:
    """Yield the batches of an epoch that follow update `step`.

    A resumed run may begin in the middle of an epoch, and --steps may end it there.
    """
    epoch, done = divmod(step, batches.per_epoch)
    return itertools.islice(batches.epoch(epoch, done), total_steps - step)


def is_due(step: int, every: int | None) -> bool:
    """Return True after each `every`-th update."""
    return every is not None and step % every == 0


def evaluate(job: Job, state: TrainState, part: str | None) -> dict[str, float]:
    """Return the metrics of a placed state over exactly the examples of a part.

    Args:
        job: Has the batches and the evaluation step.
        state: As the strategy places it.
        part: "test" or "validation". None: the data set has neither, and the metrics
            are {}.
    """
    if part is None:
        return {}
    batches = job.batches[part]
    meter = Meter(is_weighted=batches.is_weighted)
    try:
        with prefetch(batches.epoch(0), job.strategy.place_batch) as placed_batches:
            for step, batch in enumerate(placed_batches):
                sums = job.strategy.eval_step(state, batch)
                meter.add(step + 1, sums, batches.examples_in(step))
        meter.finish()
    except DivergedError as error:
        # Training only sees losses, so the last update's result is first used here.
        if not is_finite(state):
            raise DivergedError(
                "the last update left no finite state, though its loss was: "
                f"{DIVERGED_ADVICE}"
            ) from None
        first = (error.step - 1) * batches.batch_size
        last = min(first + batches.batch_size, batches.examples) - 1
        raise DivergedError(
            f"the {part} loss is not finite, though the state is: look at {part} "
            f"examples {first} to {last}, counted from 0, or {DIVERGED_ADVICE}"
        ) from None
    return meter.means


def load_run(
    path: str | Path, *, best: bool = False, **python_values: Any
) -> tuple[Config, TrainState, dict[str, Any]]:
    """Read a run: its configuration, its newest state, and its last epoch's results.

    Args:
        path: Its folder.
        best: Read the state and the results of the best epoch instead.
        python_values: `model` and `optimizer` again, if `train` was given them.

    Returns:
        (config, state, results): the state is on the host.
    """
    config = read_config(path)
    # The state is read without the data, so nobody has to give them.
    parts = {"data": "not needed"} | python_values
    require_python_values(config, parts, "pmapdp.train.load_run", str(path))
    with jax.enable_x64(config.dtype == "float64"):
        task = rebuild_task(config, **python_values)
        state, epoch_progress = load_state(path, task, best=best)
    return config, state, epoch_progress["last"]


COMMAND = cli.Command(
    usage="python -m pmapdp.train [RECIPE] [flags]",
    example="python -m pmapdp.train",
    description=__doc__,
)


def main(arguments: list[str]) -> None:
    """Run the command."""
    config, options = cli.parse_with_recipe(COMMAND, ProcessesOptions, arguments)
    with connect_processes(options, config) as processes:
        train(config, processes=processes)


if __name__ == "__main__":
    sys.exit(cli.run(main))
