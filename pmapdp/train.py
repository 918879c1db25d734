"""Train a network: data, model, step, loop, evaluation.

    python -m pmapdp.train                               # digits, 8 devices
    python -m pmapdp.train --strategy jit --devices 4    # split by the compiler
    python -m pmapdp.train mirrored --workdir runs/first  # again: it resumes
    srun python -m pmapdp.train --distributed            # several processes

Lesson 14 teaches this file.
"""

import dataclasses
import functools
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx

from pmapdp import cli, devices
from pmapdp.config import Config, flag
from pmapdp.custom.data import fingerprint, make_data_set
from pmapdp.custom.model import build_model, check_task
from pmapdp.custom.optimizer import check_optimizer, check_schedule, trainable_filter
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import DataSet
from pmapdp.distributed import (
    SINGLE_PROCESS,
    Processes,
    ProcessesOptions,
    connect_processes,
    find_processes,
)
from pmapdp.errors import DIVERGED_ADVICE, DivergedError, UserError
from pmapdp.job import Job
from pmapdp.layers import freeze_batch_norms
from pmapdp.loss import MetricSums, cross_entropy
from pmapdp.metrics import Meter
from pmapdp.optimizer import OPTIMIZERS, SCHEDULES, make_optimizer, make_schedule
from pmapdp.recipes import compare_with_reported, require_recipe
from pmapdp.registry import (
    MODELS,
    featurize,
    load_custom,
    load_data,
    require_python_values,
)
from pmapdp.run.checkpoints import load_state
from pmapdp.run.compile_cache import keep_compiled_programs
from pmapdp.run.open_run import Run, open_run
from pmapdp.run.workdir import read_config, with_full_paths
from pmapdp.sharding.layout import (
    MeshLayout,
    check_sharding,
    fit_layout,
    number_of_devices,
)
from pmapdp.sharding.split_step import make_split_strategy
from pmapdp.state import Task, TrainState, is_finite, named_leaves
from pmapdp.steps import STRATEGIES
from pmapdp.steps.placing import prefetch
from pmapdp.steps.shared import Strategy

EVALUATION_BATCH_PER_DEVICE = 64
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


class Custom(NamedTuple):
    """Arguments of `train` that replace what the configuration names."""

    model: Callable[..., nnx.Module] | None = None
    data: Any = None
    loss: Callable[..., MetricSums] | None = None
    metrics: Callable[..., dict[str, Any]] | None = None
    optimizer: Callable[..., optax.GradientTransformation] | None = None
    schedule: optax.Schedule | None = None
    trainable: Any = None


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
    custom = Custom(model, data, loss, metrics, optimizer, schedule, trainable)
    processes = processes or find_processes(config)
    # Your code may change the current folder, so relative paths wouldn't do.
    config = with_full_paths(config, is_first=processes.is_first)
    require_recipe(config)
    if config.compile_cache:
        keep_compiled_programs()
    # Only a float64 run uses 64 bits, whatever the caller has set, because with them
    # JAX's random numbers change.
    with jax.enable_x64(config.dtype == "float64"):
        job = prepare(config, custom, processes)
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


def prepare(
    config: Config, custom: Custom | None = None, processes: Processes = SINGLE_PROCESS
) -> Job:
    """Choose the devices, read the data, build the model, and make the step.

    For float64 call it, and use what it returns, inside `jax.enable_x64(True)`.
    """
    custom = custom or Custom()
    assert config.dtype != "float64" or jax.config.read("jax_enable_x64"), (
        "JAX would make float32 of it"
    )
    check_sharding(config.mesh, config.layout, config.shard_state, config.strategy)
    number: int | None = 1
    if config.strategy != "single":
        number = number_of_devices(config.devices, config.mesh, processes.count)
    local_devices = devices.choose(number)  # starts JAX's devices
    all_devices = devices.extend_to_all_processes(local_devices)
    functions = find_functions(config, custom)

    data = read_data(config, custom, processes)
    task, arrays = build_task(config, custom, functions["model"], data)
    data_fingerprint = None
    # It takes a pass over the data, so only a run that must compare it does this.
    if config.workdir or processes.count > 1:
        data_fingerprint = fingerprint(data)
        processes.require_same({"the content of the data": data_fingerprint})
    layout, batches = make_batches(config, task, arrays, local_devices, all_devices)
    # The schedule depends on the number of batches.
    optimizer, schedule = build_optimizer(config, functions, task, batches["train"])
    task = dataclasses.replace(task, optimizer=optimizer)
    updates = config.epochs * batches["train"].per_epoch
    return Job(
        config=dataclasses.replace(
            config,
            **name_custom_parts(custom, task),
            global_batch_size=batches["train"].batch_size,
            per_device_batch_size=None,
        ),
        devices=all_devices,
        data=arrays,
        task=task,
        batches=batches,
        total_steps=min(config.steps or updates, updates),
        # Operation by operation it would be a dozen programs to compile.
        schedule=jax.jit(schedule),
        strategy=choose_strategy(config.strategy, task, all_devices, layout),
        layout=layout,
        processes=processes,
        data_fingerprint=data_fingerprint,
        functions=functions | {"augmentation": arrays.augment},
    )


def find_functions(config: Config, custom: Custom) -> dict[str, Any]:
    """Return your functions by their role. None means a built-in one."""
    return {
        "model": custom.model or load_custom("model", config.model),
        "loss": custom.loss,
        "metrics": custom.metrics,
        "optimizer": custom.optimizer or load_custom("optimizer", config.optimizer),
        "schedule": custom.schedule or load_custom("schedule", config.schedule),
    }


def read_data(config: Config, custom: Custom, processes: Processes) -> DataSet:
    """Read the data set, or take yours. Process 0 goes first: it may download it."""
    if not processes.is_first:
        processes.wait("the data set")
    if custom.data is None:
        data = load_data(config.dataset, config.data_dir)
    else:
        data = make_data_set(custom.data)
    if processes.is_first:
        processes.wait("the data set")
    return data


def build_task(
    config: Config, custom: Custom, custom_model: Any, data: DataSet
) -> tuple[Task, DataSet]:
    """Build the model, choose its loss, and try both on examples.

    `custom_model` is yours, or None for a built-in one.

    Returns:
        (task, arrays): the task without its optimizer, which depends on the number of
        batches, and the data as the model takes them.
    """
    make_model = custom_model or MODELS[config.model]
    model = build_model(make_model, config.seed, config.dtype)
    arrays, _ = featurize(data, model)
    task = make_task(config, custom, model, arrays.augment)
    # Yours are tried; the built-in ones have their tests.
    is_custom = (custom_model, custom.loss, custom.metrics) != (None, None, None)
    check_task(task, arrays, custom=is_custom, best=config.best)
    return task, arrays


def make_batches(
    config: Config,
    task: Task,
    arrays: DataSet,
    local_devices: Sequence[jax.Device],
    all_devices: Sequence[jax.Device],
) -> tuple[MeshLayout, dict[str, Batches]]:
    """Lay the arrays out for the devices, and cut the data into batches."""
    # Only its shape is needed, to see which of its axes the mesh can split.
    example = jax.tree.leaves(arrays.train.select(np.arange(1)).inputs)[0][0]
    layout = fit_layout(
        all_devices,
        task,
        example.shape,
        mesh=config.mesh,
        layout=config.layout,
        shard_state=config.shard_state,
    )
    N = layout.batch_shards
    B = global_batch_size(config, N, arrays.train.examples)
    local_shards = layout.shards_on(local_devices, task)
    make = functools.partial(Batches, devices=N, local_shards=local_shards)
    batches = {}
    for name, part in arrays.parts.items():
        if name == "train":
            batches[name] = make(
                part, B, accumulate=config.accumulate, shuffle_seed=config.seed
            )
        else:
            # An evaluation keeps no gradients, so larger batches fit.
            batches[name] = make(part, max(B, EVALUATION_BATCH_PER_DEVICE * N))
    return layout, batches


def build_optimizer(
    config: Config, functions: dict[str, Any], task: Task, batches: Batches
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Return the optimizer, and its learning rate by the updates made."""
    schedule = functions["schedule"]
    if schedule is None:
        updates = config.epochs * batches.per_epoch
        schedule = make_schedule(config, batches.batch_size, batches.per_epoch, updates)
    else:
        check_schedule(schedule)
    custom_optimizer = functions["optimizer"]
    if custom_optimizer is not None:
        check_optimizer(custom_optimizer, schedule, task)
    return make_optimizer(config, schedule, custom_optimizer), schedule


def make_task(
    config: Config, custom: Custom, model: nnx.Module, augment: Any = None
) -> Task:
    """Choose the loss of a model and what is trained. Its optimizer is missing."""
    trainable = config.trainable if custom.trainable is None else custom.trainable
    # Yours, else the one that the model's class brings along, else the cross-entropy.
    loss = custom.loss or getattr(type(model), "loss", None)
    if loss is None:
        loss = functools.partial(
            cross_entropy,
            label_smoothing=config.label_smoothing,
            metrics=custom.metrics,
        )
        classifies = True
    else:
        classifies = loss is cross_entropy
        if custom.metrics is not None:
            raise UserError(
                "metrics= is for the cross-entropy: return them in the metrics of your "
                "loss's MetricSums"
            )
    chosen = trainable_filter(model, trainable)
    # Otherwise the running moments of a part that isn't trained would still move.
    freeze_batch_norms(model, chosen)
    return Task(
        model,
        seed=config.seed,
        dtype=config.dtype,
        loss=loss,
        classifies=classifies,
        augment=augment,
        accumulate=config.accumulate,
        trainable=chosen,
    )


def name_custom_parts(custom: Custom, task: Task) -> dict[str, Any]:
    """Return the settings that name your parts, for the header and config.json."""
    names: dict[str, Any] = {} if custom.data is None else {"dataset": "arrays"}
    if custom.model is not None:
        names["model"] = task.name
    if custom.trainable is not None:
        names["trainable"] = tuple(named_leaves(task.split_arrays(task.model)[0]))
    functions = {"optimizer": custom.optimizer, "schedule": custom.schedule}
    for part, function in functions.items():
        if function is None:
            continue
        name = getattr(function, "__name__", type(function).__name__)
        # config.json must not say that a built-in one was used.
        if name in (*OPTIMIZERS, *SCHEDULES):
            name = f"your {name}"
        names[part] = name
    return names


def global_batch_size(config: Config, shards: int, examples: int) -> int:
    """Return the global batch size B from the settings, by default 64.

    One that is larger than the data is refused.
    """
    name = "global_batch_size"
    times = 1
    if config.per_device_batch_size:
        name = "per_device_batch_size"
        times = shards
    setting = getattr(config, name) or min(64, examples)
    size = setting * times
    if size > examples:
        raise UserError(
            f"{flag(name)} {setting} on {shards} device(s) takes {size} examples an "
            f"update, but the training set has {examples}: use at most "
            f"{flag(name)} {examples // times}"
        )
    if config.accumulate > size:
        raise UserError(
            f"--accumulate {config.accumulate} cuts a global batch of {size} into more "
            f"micro-batches than it has examples: use at most --accumulate {size}"
        )
    return size


def choose_strategy(
    name: str, task: Task, devices: Sequence[jax.Device], layout: MeshLayout
) -> Strategy:
    """Make the functions of a strategy. For a split state they are in `sharding/`."""
    if layout.splits_state:
        return make_split_strategy(task, layout)
    return STRATEGIES[name](task, devices)


def rebuild_task(config: Config, **python_values: Any) -> Task:
    """Make the task of a run whose state is only read.

    It needs no learning rate, which isn't part of the state.
    """
    custom = Custom(**python_values)
    custom_model = custom.model or load_custom("model", config.model)
    make_model = custom_model or MODELS[config.model]
    model = build_model(make_model, config.seed, config.dtype)
    task = make_task(config, custom, model)
    custom_optimizer = custom.optimizer or load_custom("optimizer", config.optimizer)
    optimizer = make_optimizer(config, optax.constant_schedule(0.0), custom_optimizer)
    return dataclasses.replace(task, optimizer=optimizer)


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
