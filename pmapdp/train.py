"""Train a network: data, model, step, loop, evaluation.

    python -m pmapdp.train                             # digits, 8 devices
    python -m pmapdp.train --strategy jit --devices 4  # jit instead of pmap
    python -m pmapdp.train --workdir runs/first        # the same again resumes
    python -m pmapdp.train --model net.py:Net --dataset photos --strategy jit
    python -m pmapdp.train --strategy jit --per-device-batch-size 64
    srun python -m pmapdp.train --distributed          # several processes

A recipe sets several flags at once, and the flags that you add replace its own.
"""

# Lesson 14 teaches this file.

import contextlib
import itertools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

import jax
import optax
from flax import nnx

from pmapdp import cli, flags
from pmapdp.config import Config
from pmapdp.distributed import (
    Processes,
    ProcessesOptions,
    connect_processes,
    exit_on_error,
    find_processes,
    make_global,
)
from pmapdp.errors import DIVERGED_ADVICE, DivergedError, StoppedError
from pmapdp.job import CustomParts, Job, make_job, rebuild_task
from pmapdp.loss import MetricSums
from pmapdp.metrics import Meter
from pmapdp.recipes import require_recipe
from pmapdp.registry import parts_from_python, require_python_values
from pmapdp.run.checkpoints import Checkpoints
from pmapdp.run.compile_cache import keep_compiled_programs
from pmapdp.run.metrics_files import read_epochs
from pmapdp.run.not_finite import explain_divergence
from pmapdp.run.progress import Progress
from pmapdp.run.report import Report
from pmapdp.run.saved_run import load_state, load_weights
from pmapdp.run.workdir import (
    open_workdir,
    read_config,
    with_full_paths,
    write_config,
)
from pmapdp.signals import StopRequest, watch_signals
from pmapdp.state import TrainState, create_state, is_finite
from pmapdp.steps.placing import fetch, prefetch

AfterEpoch = Callable[[dict[str, Any], TrainState], Any]


@dataclass(frozen=True)
class Result:
    """A result holds the trained state, and the results of each epoch.

    Attributes:
        state: The last state, on the host. With `best` or `patience`, the best epoch's.
        epochs: The results of all epochs, those before a restart included, as in the
            metrics file: `{"epoch": 1, "step": 23, "train": {"loss": ..., "accuracy":
            ..., "examples": 1437}, "test": {...}, ...}`.

    Example:
        trained = Net(rngs=nnx.Rngs(0))
        nnx.update(trained, result.state.params)
        nnx.update(trained, result.state.model_state)
        trained.eval()
        print(trained(inputs[:2]).argmax(1))
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
    """Train a model as `config` says, or resume the run in its workdir.

    Args:
        config: The settings.
        model: Your network, if `config` doesn't name it: a class or function that takes
            `rngs` and returns an `nnx.Module`. If it also takes `dtype` and
            `param_dtype`, it gets the types of the run.
        data: Your data, if `config` doesn't name them: a `DataSet`, or a dictionary of
            `train`, `test` and `validation`. Each part is (inputs, labels), (inputs,
            labels, weights), `Texts` or a map-style data set, such as PyTorch's.
        loss: Your loss, a function of (model, batch) that returns `MetricSums`.
            Default: the model's method `loss(batch)`, or else the cross-entropy.
        metrics: More metrics of a classifier: a function of (logits, batch) that
            returns sums over the batch by name, as in `MetricSums.metrics`.
        optimizer: A function that takes the schedule and returns an Optax optimizer,
            such as `optax.lion`.
        schedule: A function that takes the number of updates made and returns the
            learning rate.
        trainable: The parameters to train, as names such as `("head",)`, or as a filter
            of Flax. The others don't change, even with weight decay.
        after_epoch: A function that every process calls after each epoch, as
            `after_epoch(results, state)`. The results are the epoch's entry in
            `Result.epochs`. The state is on the devices, and the next update overwrites
            it, so copy what you keep.
        processes: The processes that take part, which must all call `train` alike.
            Default: those that `jax.distributed.initialize` has connected.

    Returns:
        A `Result`, with the trained state and the results of all epochs.

    Raises:
        UserError: The settings don't fit the machine, the data or the workdir, training
            diverged, or a file can't be written.
        StoppedError: A signal stopped the run, for example Ctrl-C or a notebook's stop
            button. With a workdir, the run has written a checkpoint. Without one, the
            error's `state` has the state.

    Example:
        config = Config(strategy="jit", epochs=2, workdir="runs/api")
        result = train(config, model=Net, data=data)
        print(result.epochs[-1]["test"]["accuracy"])
    """
    started = time.perf_counter()  # the run's last line says how long it all took
    custom = CustomParts(model, data, loss, metrics, optimizer, schedule, trainable)
    processes = processes or find_processes(config)
    # Your code may change the current folder, so relative paths wouldn't do.
    config = with_full_paths(config, is_process_0=processes.is_process_0)
    require_recipe(config)
    if config.compile_cache:
        keep_compiled_programs()
    # Only a float64 run uses 64 bits, whatever the caller has set, because with them
    # JAX's random numbers change.
    with (
        jax.enable_x64(config.dtype == "float64"),
        watch_signals(processes) as stop_request,
    ):
        job = make_job(config, custom, processes)
        if stop_request.agreed:
            name = stop_request.agreed.name
            status = 128 + stop_request.agreed
            raise StoppedError(f"stopped by {name} before the first update", status)
        with (
            explain_divergence(job),
            open_workdir(job) as checkpoints,  # None without a workdir
            contextlib.ExitStack() as stack,  # closes what the report opens
        ):
            if processes.count > 1:
                stack.enter_context(exit_on_error())
            state, progress, message = restore_or_init(job, checkpoints)
            # After the checkpoint was accepted, so that a refused run changes nothing.
            if config.workdir and processes.is_process_0:
                write_config(job.config, config.workdir)
            report = Report(job, stack)
            report.start(state, progress.step, message)
            while not progress.is_done:
                state = train_epoch(
                    job, state, progress, checkpoints, report, stop_request, after_epoch
                )
            if checkpoints:
                checkpoints.wait()
            report.end(progress, time.perf_counter() - started)
            state = choose_result(job, state, progress, checkpoints)
        return Result(state, list(progress.epochs.values()))


def restore_or_init(
    job: Job, checkpoints: Checkpoints | None
) -> tuple[TrainState, Progress, str]:
    """Return the state on the devices, the run's progress, and a line about them.

    They come from the newest checkpoint. At the first start there is none, and the
    state comes from `--init-from`, or from the seed.
    """
    config = job.config
    if checkpoints is None or not checkpoints.saved_steps():
        task = job.task
        message = ""
        if config.init_from:
            task, message = load_weights(task, config.init_from)
        state = job.strategy.place_state(create_state(task))
        return state, Progress(job), message

    step = checkpoints.saved_steps()[-1]
    state, saved = checkpoints.read(
        step,
        job.task,
        job.strategy.state_sharding,
        accept_changed_functions=config.accept_changed_functions,
    )
    progress = Progress(job, step, **saved)
    # A run that was killed may have reported epochs that it has to make again. One that
    # was stopped in the middle of an epoch has that epoch twice.
    for results in read_epochs(checkpoints.folder.parent):
        if results["step"] <= step:
            progress.epochs[results["epoch"]] = results
    return state, progress, f"restored from the checkpoint of step {step:,}"


def train_epoch(
    job: Job,
    state: TrainState,
    progress: Progress,
    checkpoints: Checkpoints | None,
    report: Report,
    stop_request: StopRequest,
    after_epoch: AfterEpoch | None,
) -> TrainState:
    """Train to the end of the epoch, or of the run, and return the state.

    `progress` counts the updates, and gets the results.
    """
    strategy = job.strategy  # its functions are in steps/ or sharding/
    batches = job.batches["train"]
    save_every = job.config.checkpoint_every
    # An epoch that's resumed in its middle goes on with the sums that were saved.
    meter = Meter(progress.sums, progress.examples, is_weighted=batches.is_weighted)
    # A resumed run may begin in the middle of an epoch, and --steps may end it there.
    epoch, done = divmod(progress.step, batches.per_epoch)
    steps_left = job.total_steps - progress.step
    host_batches = itertools.islice(batches.epoch(epoch, done), steps_left)
    with prefetch(host_batches, strategy.place_batch) as placed_batches:
        for batch in placed_batches:
            examples = batches.count_examples(progress.step)
            # This returns before the devices have computed anything, so the host can
            # start the next update meanwhile.
            state, sums = strategy.train_step(state, batch)
            progress.step += 1
            meter.add(progress.step, sums, examples)
            report.update(progress, meter, state)

            if progress.is_epoch_end:
                results = evaluate_epoch(job, state, progress, meter)
                progress.end_epoch(results)
                report.end_epoch(results, meter)
                save(job, state, progress, meter, checkpoints)
                if after_epoch is not None:
                    after_epoch(dict(results), state)
            elif save_every and progress.step % save_every == 0:
                save(job, state, progress, meter, checkpoints)

            signal = stop_request.agree(progress.step)
            if signal and not progress.is_done:
                # This does nothing if the update was just saved.
                save(job, state, progress, meter, checkpoints)
                raise stopped_error(job, state, progress.step, checkpoints, signal)
    return state


def evaluate_epoch(
    job: Job, state: TrainState, progress: Progress, meter: Meter
) -> dict[str, Any]:
    """Return the results of an epoch that has just ended."""
    meter.finish()  # the evaluation isn't part of its time
    results: dict[str, Any] = {
        "epoch": progress.epoch,
        "step": progress.step,
        "train": meter.means,
    }
    part = job.evaluated_part
    if part is not None:
        results[part] = evaluate(job, state, part)
    # The rate of the update that was made last, not of the next one.
    learning_rate = job.schedule(jax.device_put(progress.step - 1))
    results["learning_rate"] = float(jax.device_get(learning_rate))
    return results | meter.speed


def evaluate(job: Job, state: TrainState, part: str) -> dict[str, float]:
    """Return the metrics of a placed state over exactly the examples of a part.

    Args:
        job: Has the batches and the evaluation step.
        state: As the strategy places it.
        part: "test" or "validation".
    """
    batches = job.batches[part]
    meter = Meter(is_weighted=batches.is_weighted)
    try:
        with prefetch(batches.epoch(0), job.strategy.place_batch) as placed_batches:
            for number, batch in enumerate(placed_batches):
                sums = job.strategy.eval_step(state, batch)
                meter.add(number + 1, sums, batches.count_examples(number))
        meter.finish()
    except DivergedError as error:
        # Training only sees losses, so the last update's result is first used here.
        if not is_finite(state):
            raise DivergedError(
                "the last update left no finite state, though its loss was: "
                f"{DIVERGED_ADVICE}"
            ) from None
        first = (error.step - 1) * batches.batch_size
        last = min(first + batches.batch_size, batches.num_examples) - 1
        raise DivergedError(
            f"the {part} loss is not finite, though the state is: look at {part} "
            f"examples {first} to {last}, counted from 0, or {DIVERGED_ADVICE}"
        ) from None
    return meter.means


def save(
    job: Job,
    state: TrainState,
    progress: Progress,
    meter: Meter,
    checkpoints: Checkpoints | None,
) -> None:
    """Start to write a checkpoint, unless there is one of this update.

    Without a workdir only the best epoch's state is kept, on the host.
    """
    if checkpoints is None:
        if progress.wants_best and progress.best.get("step") == progress.step:
            progress.best_state = fetch(state)
        return
    if progress.step in checkpoints.saved_steps():
        return
    if progress.step % job.batches["train"].per_epoch:
        # A resumed run needs these sums for the means over the whole epoch.
        meter.finish()
        progress.sums = dict(meter.sums)
        progress.examples = meter.examples
    state = make_global(state, job.strategy.state_sharding)
    # A run that resumed from a NaN would end at once, every time.
    if not is_finite(state):
        raise DivergedError(
            f"the state is not finite after step {progress.step}: {DIVERGED_ADVICE}"
        )
    checkpoints.save(progress.step, state, progress.to_json())


def stopped_error(
    job: Job,
    state: TrainState,
    step: int,
    checkpoints: Checkpoints | None,
    signal: Signals,
) -> StoppedError:
    """Make the error that ends a run after update `step`, once all is on the disk."""
    if checkpoints is None:
        # The caller gets the state, so that nothing is lost.
        unsaved = fetch(state)
        advice = "nothing was kept; with --workdir runs/first a run can be resumed"
    else:
        checkpoints.wait()
        unsaved = None
        advice = (
            f"a checkpoint is in {job.config.workdir}, and the same command resumes "
            "from it"
        )
    message = f"stopped by {signal.name} after step {step:,}: {advice}"
    return StoppedError(message, 128 + signal, unsaved)


def choose_result(
    job: Job, state: TrainState, progress: Progress, checkpoints: Checkpoints | None
) -> TrainState:
    """Copy the last state to the host, or the best epoch's if that's asked for."""
    best_step = progress.best.get("step")
    if not progress.wants_best or best_step in (None, progress.step):
        return fetch(state)
    if checkpoints is None:
        return progress.best_state
    best, _ = checkpoints.read(
        best_step,
        job.task,
        job.strategy.state_sharding,
        accept_changed_functions=True,
    )
    return fetch(best)


def load_run(
    path: str | Path, *, best: bool = False, **python_values: Any
) -> tuple[Config, TrainState, dict[str, Any]]:
    """Read a run: its settings, its newest state, and its last epoch's results.

    Args:
        path: The folder of the run.
        best: Read the state and the results of the best epoch instead.
        python_values: `model` and `optimizer` again, if `train` was given them.

    Returns:
        (config, state, results), with the state on the host.

    Example:
        config, state, last_epoch = load_run("runs/api", model=Net)
        print(last_epoch["test"]["loss"])
    """
    config = read_config(path)
    # The state is read without the data, so nobody has to give them.
    names = [name for name in parts_from_python(config) if name != "data"]
    require_python_values(names, python_values, "pmapdp.train.load_run", str(path))
    with jax.enable_x64(config.dtype == "float64"):
        task = rebuild_task(config, **python_values)
        state, last_epoch = load_state(path, task, best=best)
    return config, state, last_epoch


COMMAND = flags.Command(
    usage="python -m pmapdp.train [RECIPE] [flags]",
    example="python -m pmapdp.train",
    description=__doc__,
)


def main(arguments: list[str]) -> None:
    """Run the command."""
    config, options = flags.parse_with_recipe(COMMAND, ProcessesOptions, arguments)
    with connect_processes(options, config) as processes:
        train(config, processes=processes)


if __name__ == "__main__":
    sys.exit(cli.run(main))
