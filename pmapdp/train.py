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
from collections.abc import Callable, Sequence
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
from pmapdp.data.batches import Batches
from pmapdp.distributed import (
    SINGLE_PROCESS,
    Peers,
    ProcessesOptions,
    connect_processes,
    find_peers,
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
    find_code,
    load_data,
    require_python_values,
)
from pmapdp.run.checkpoints import load_state
from pmapdp.run.open_run import AfterEpoch, keep_compiled_programs, open_run
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


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        state: the last one on the host, or with `best` or `patience` the best epoch's.
        epochs: the results of each epoch of the run, as in its metrics file:
            `{"epoch": 1, "step": 23, "train": {"loss": ..., "accuracy": ...,
            "examples": 1437}, "test": {...}, ...}`.
    """

    state: TrainState
    epochs: list[dict[str, Any]]


class Custom(NamedTuple):
    """Your parts of a run, as `train` takes them. None: the configuration chooses."""

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
    peers: Peers | None = None,
) -> Result:
    """Run `config` from start to end, or resume the run in its workdir.

    Args:
        config: the settings.
        model: builds your network, in place of the one that the configuration names;
            see `pmapdp.state.build`.
        data: your data set; see `pmapdp.custom.data.make_data_set`.
        loss: your loss, in place of `model.loss` or the cross-entropy; see `Task.loss`.
        metrics: of a classifier, a function of (logits, batch) that returns further
            sums by name.
        optimizer: a function of the schedule that returns an update rule of optax, for
            example `optax.lion`.
        schedule: a function of the number of updates made that returns the learning
            rate.
        trainable: the parameters to train, by a filter of Flax or names. The others
            stay fixed, even with weight decay.
        after_epoch: called after each epoch as after_epoch(results, state). The state
            is on the devices, and the next update overwrites it, so copy what you keep.
            With several processes, each one calls it.
        peers: the processes that take part; all call this function alike. Default:
            those that the program has connected by `jax.distributed.initialize`.

    Raises:
        UserError: the configuration doesn't fit the machine, the data or the workdir,
            training diverged, or a file can't be written.
        StoppedError: SIGTERM, SIGINT or SIGHUP (in a notebook: its stop button) stopped
            the run. With a workdir a checkpoint was written, without one the error's
            `state` has the state.
    """
    started = time.perf_counter()
    custom = Custom(model, data, loss, metrics, optimizer, schedule, trainable)
    peers = peers or find_peers(config)
    config = with_full_paths(config, is_first=peers.is_first)
    require_recipe(config)
    if config.compile_cache:
        keep_compiled_programs()
    # Only a float64 run uses 64 bits, whatever the caller has set, because with them
    # JAX's random numbers change.
    with jax.enable_x64(config.dtype == "float64"):
        job = prepare(config, custom, peers)
        strategy, batches = (
            job.strategy,
            job.batches["train"],
        )  # the strategy's functions are in steps/ or sharding/
        with open_run(job, started, after_epoch) as run:
            state, step = run.restore_or_init()
            while not run.is_done(step):
                epoch, done = divmod(step, batches.per_epoch)
                # not empty if the epoch is resumed
                meter = Meter(
                    run.progress["sums"],
                    run.progress["examples"],
                    is_weighted=batches.is_weighted,
                )
                rest_of_epoch = itertools.islice(
                    batches.epoch(epoch, done), job.total_steps - step
                )
                with prefetch(rest_of_epoch, strategy.place_batch) as placed_batches:
                    for batch in placed_batches:
                        state, sums = strategy.train_step(state, batch)
                        meter.add(step + 1, sums, batches.examples_in(step))
                        step += 1
                        run.after_update(
                            step, state, meter
                        )  # shows, saves, and stops on Ctrl-C
                run.end_epoch(step, state, meter, evaluate(job, state, job.held_out))
            run.end(step)
            epochs = list(run.epochs.values())
            run.report.line(
                *compare_with_reported(job.config, epochs, batches.per_epoch)
            )
            return Result(run.fetch_result(state), epochs)


def evaluate(job: Job, state: TrainState, part: str | None) -> dict[str, float]:
    """Return the metrics of a placed state over exactly the examples of a part of the data set, {} without a part."""
    if part is None:
        return {}
    batches = job.batches[part]
    meter = Meter(is_weighted=batches.is_weighted)
    try:
        with prefetch(batches.epoch(0), job.strategy.place_batch) as placed_batches:
            for step, batch in enumerate(placed_batches):
                meter.add(
                    step + 1,
                    job.strategy.eval_step(state, batch),
                    batches.examples_in(step),
                )
        meter.finish()
    except DivergedError as error:
        if not is_finite(state):
            raise DivergedError(
                f"the last update left no finite state, though its loss was: {DIVERGED_ADVICE}"
            ) from None
        first = (error.step - 1) * batches.batch_size
        there = f"{part} examples {first} to {min(first + batches.batch_size, batches.examples) - 1}, counted from 0"
        why = f"the {part} loss is not finite, though the state is: look at {there}, or {DIVERGED_ADVICE}"
        raise DivergedError(why) from None
    return meter.means


def prepare(
    config: Config, custom: Custom | None = None, peers: Peers = SINGLE_PROCESS
) -> Job:
    """Choose the devices, read the data, build the model, and make the step.

    For float64 call it, and use what it returns, inside `jax.enable_x64(True)`.
    """
    custom = custom or Custom()
    assert config.dtype != "float64" or jax.config.read("jax_enable_x64"), (
        "JAX would make float32 of it"
    )
    check_sharding(config.mesh, config.layout, config.shard_state, config.strategy)
    number = (
        1
        if config.strategy == "single"
        else number_of_devices(config.devices, config.mesh, peers.count)
    )
    local_devices = devices.choose(number)
    all_devices = devices.extend_to_all_processes(local_devices)
    rule = custom.optimizer or find_code(
        "optimizer", config.optimizer
    )  # None: built in
    rate = custom.schedule or find_code("schedule", config.schedule)

    # Data
    if not peers.is_first:
        peers.wait("the data set")  # process 0 may have to download it
    data = (
        load_data(config.dataset, config.data_dir)
        if custom.data is None
        else make_data_set(custom.data)
    )
    if peers.is_first:
        peers.wait("the data set")

    # Model and loss
    task = make_task(config, custom)
    model = custom.model
    if ".py:" in config.model:
        model = find_code("model", config.model)
    config = dataclasses.replace(config, **name_custom_parts(custom, task))
    arrays, _ = featurize(data, task.model)
    task = dataclasses.replace(task, augment=arrays.augment)
    yours = (
        config.model not in MODELS
        or custom.loss is not None
        or custom.metrics is not None
    )
    check_task(task, arrays, custom=yours, best=config.best)
    content = None
    if config.workdir or peers.count > 1:
        content = fingerprint(data)
        peers.require_same({f"the content of the data set {config.dataset}": content})

    # Batches, laid out for the devices
    example = jax.tree.leaves(arrays.train.select(np.arange(1)).inputs)[0][0]
    asked: dict[str, Any] = {
        "mesh": config.mesh,
        "layout": config.layout,
        "shard_state": config.shard_state,
    }
    layout = fit_layout(all_devices, task, example.shape, **asked)
    N, here = layout.batch_shards, layout.shards_on(local_devices, task)
    B = global_batch_size(config, N, arrays.train.examples)
    split = functools.partial(Batches, devices=N, local_shards=here)
    batches = {
        name: split(part, max(B, EVALUATION_BATCH_PER_DEVICE * N))
        for name, part in arrays.parts.items()
    }
    batches["train"] = split(
        arrays.train, B, accumulate=config.accumulate, shuffle_seed=config.seed
    )

    # Update rule, whose schedule depends on the number of batches
    all_steps = config.epochs * batches["train"].per_epoch
    if rate is None:
        rate = make_schedule(config, B, batches["train"].per_epoch, all_steps)
    else:
        check_schedule(rate)
    if rule is not None:
        check_optimizer(rule, rate, task)
    task = dataclasses.replace(task, optimizer=make_optimizer(config, rate, rule))
    return Job(
        config=dataclasses.replace(
            config, global_batch_size=B, per_device_batch_size=None
        ),
        devices=all_devices,
        data=arrays,
        task=task,
        batches=batches,
        total_steps=min(config.steps or all_steps, all_steps),
        schedule=jax.jit(
            rate
        ),  # operation by operation it would be a dozen programs to compile
        strategy=choose_strategy(config.strategy, task, all_devices, layout),
        layout=layout,
        peers=peers,
        content=content,
        functions={
            "model": model,
            "loss": custom.loss,
            "metrics": custom.metrics,
            "optimizer": rule,
            "schedule": custom.schedule or find_code("schedule", config.schedule),
            "augmentation": arrays.augment,
        },
    )


def make_task(config: Config, custom: Custom) -> Task:
    """Build the model, and choose its loss. The update rule is missing, because it depends on the batch size."""
    model = build_model(
        custom.model or find_code("model", config.model), config.seed, config.dtype
    )
    trainable = config.trainable if custom.trainable is None else custom.trainable
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
                "metrics= is for the cross-entropy: return them as others of "
                "MetricSums in your own loss"
            )
    chosen = trainable_filter(model, trainable)
    freeze_batch_norms(model, chosen)
    return Task(
        model,
        seed=config.seed,
        dtype=config.dtype,
        loss=loss,
        classifies=classifies,
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
    for kind, value in {
        "optimizer": custom.optimizer,
        "schedule": custom.schedule,
    }.items():
        if value is not None:
            name = getattr(value, "__name__", type(value).__name__)
            names[kind] = f"your {name}" if name in (*OPTIMIZERS, *SCHEDULES) else name
    return names


def global_batch_size(config: Config, shards: int, examples: int) -> int:
    """Return the global batch size B from the settings, by default 64. Refuse one that is larger than the data."""
    name, times = (
        ("per_device_batch_size", shards)
        if config.per_device_batch_size
        else ("global_batch_size", 1)
    )
    given = getattr(config, name) or min(64, examples)
    size = given * times
    if size > examples:
        raise UserError(
            f"{flag(name)} {given} on {shards} device(s) takes {size} examples an update, but the training set of "
            f"{config.dataset} has {examples}: use at most {flag(name)} {examples // times}"
        )
    if config.accumulate > size:
        raise UserError(
            f"--accumulate {config.accumulate} cuts a global batch of {size} into more micro-batches than it has "
            f"examples: use at most --accumulate {size}"
        )
    return size


def choose_strategy(
    name: str, task: Task, devices: Sequence[jax.Device], layout: MeshLayout
) -> Strategy:
    """Make the functions of a strategy. For a split state they are in `sharding/`."""
    if layout.splits_state:
        return make_split_strategy(task, layout)
    return STRATEGIES[name](task, devices)


def rebuild_task(config: Config, **yours: Any) -> Task:
    """Make the task of a run whose state is only read. It needs no learning rate, which isn't part of the state."""
    custom = Custom(**yours)
    rule = custom.optimizer or find_code("optimizer", config.optimizer)
    optimizer = make_optimizer(config, optax.constant_schedule(0.0), rule)
    return dataclasses.replace(make_task(config, custom), optimizer=optimizer)


def load_run(
    path: str | Path, *, best: bool = False, **yours: Any
) -> tuple[Config, TrainState, dict[str, Any]]:
    """Read a run: its configuration, its newest state on the host, and the results of its last epoch.

    Args:
        path: its folder.
        best: read the state and the results of the best epoch instead.
        yours: `model` and `optimizer` again if `train` had them as Python values.
    """
    config = read_config(path)
    parts = {"data": "not needed"} | yours
    require_python_values(config, parts, "pmapdp.train.load_run", str(path))
    with jax.enable_x64(config.dtype == "float64"):
        task = rebuild_task(config, **yours)
        state, progress = load_state(path, task, best=best)
    return config, state, progress["last"]


COMMAND = cli.Command(
    usage="python -m pmapdp.train [RECIPE] [flags]",
    example="python -m pmapdp.train",
    description=__doc__,
)


def main(arguments: list[str]) -> None:
    """Run the command."""
    config, options = cli.parse_with_recipe(COMMAND, ProcessesOptions, arguments)
    with connect_processes(options, config) as peers:
        train(config, peers=peers)


if __name__ == "__main__":
    sys.exit(cli.run(main))
