"""All parts of a run before its first update: devices, data, model, batches and step.

`make_job` makes them from a configuration, and `train.py` runs them.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from flax import nnx

from pmapdp.config import SCHEDULES, Config, check_effects, flag
from pmapdp.custom.data import fingerprint, make_data_set
from pmapdp.custom.model import build_model, check_task
from pmapdp.custom.optimizer import check_optimizer, check_schedule, trainable_filter
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import DataSet
from pmapdp.devices import choose_devices, extend_to_all_processes
from pmapdp.distributed import SINGLE_PROCESS, Processes
from pmapdp.errors import UserError
from pmapdp.layers import freeze_batch_norms
from pmapdp.loss import cross_entropy
from pmapdp.optimizer import OPTIMIZERS, make_optimizer, make_schedule
from pmapdp.registry import MODELS, PYTHON_DATA, featurize, load_custom, load_data
from pmapdp.sharding.flags import (
    check_sharding,
    count_batch_shards,
    fit_layout,
    number_of_devices,
)
from pmapdp.sharding.layout import MeshLayout
from pmapdp.sharding.split_step import make_split_strategy
from pmapdp.state import Task, named_leaves
from pmapdp.steps import STRATEGIES
from pmapdp.steps.shared import Strategy

# An evaluation keeps no gradients, so it takes larger batches than a small training.
EVALUATION_BATCH_PER_DEVICE = 64


class CustomParts(NamedTuple):
    """Your own parts of a run, in place of those that the configuration names.

    `pmapdp.train.train` says what each of them is. None: none of yours.
    """

    model: Any = None
    data: Any = None
    loss: Any = None
    metrics: Any = None
    optimizer: Any = None
    schedule: Any = None
    trainable: Any = None


@dataclass(frozen=True)
class Job:
    """Everything that a run needs before its first update.

    Attributes:
        config: The settings, with the global batch size and your own parts' names.
        custom: Your own parts, also those that the configuration names by their file.
        devices: The devices of all processes.
        task: Model, loss and optimizer.
        batches: The batches of "train", and of "test" and "validation" if there are
            such parts.
        total_steps: The most updates that the run makes.
        schedule: The learning rate, a function of the number of updates made.
        strategy: The functions of the step, from `steps/` or `sharding/`.
        layout: Which shard of every array each device holds.
        processes: The processes that own the devices.
        data_fingerprint: Tells data sets apart. None without a workdir and with one
            process.
    """

    config: Config
    custom: CustomParts
    devices: list[jax.Device]
    task: Task
    batches: dict[str, Batches]
    total_steps: int
    schedule: Callable[[Any], Any]
    strategy: Strategy
    layout: MeshLayout
    processes: Processes
    data_fingerprint: str | None

    @property
    def evaluated_part(self) -> str | None:
        """Return the part to evaluate after each epoch.

        It's "validation", else "test", else None.
        """
        for part in ("validation", "test"):
            if part in self.batches:
                return part
        return None


def make_job(
    config: Config,
    custom: CustomParts | None = None,
    processes: Processes = SINGLE_PROCESS,
) -> Job:
    """Choose the devices, read the data, build the model, and make the step.

    If the run is in float64, call it inside `jax.enable_x64(True)`, and use the job
    there too.
    """
    assert config.dtype != "float64" or jax.config.read("jax_enable_x64"), (
        "float64 needs jax.enable_x64(True)"
    )
    check_sharding(config)
    number = number_of_devices(config, processes.count)
    local_devices = choose_devices(number)  # starts JAX's devices
    devices = extend_to_all_processes(local_devices)

    # The configuration already names your parts that are in files. `complete_config`
    # adds the names of those from Python, so they're kept apart.
    from_python = custom or CustomParts()
    custom = load_custom_parts(config, from_python)
    data = read_data(config, custom, processes)
    make_model = custom.model or MODELS[config.model]
    model = build_model(make_model, config.seed, config.dtype)
    arrays, _ = featurize(data, model)
    examples = arrays.train.num_examples
    B = global_batch_size(config, count_batch_shards(config, len(devices)), examples)
    updates_per_epoch = math.ceil(examples / B)
    updates = config.epochs * updates_per_epoch
    schedule = choose_schedule(config, custom, B, updates_per_epoch, updates)
    task = make_task(config, custom, model, schedule, arrays.augment)
    is_custom = (custom.model, custom.loss, custom.metrics) != (None, None, None)
    check_task(task, arrays, custom=is_custom, best=config.best)
    data_fingerprint = require_same_data(config, data, processes)

    layout = make_layout(config, task, arrays, devices)
    local_shards = layout.shards_on(local_devices, task)
    return Job(
        config=complete_config(config, from_python, task, B),
        custom=custom,
        devices=devices,
        task=task,
        batches=make_batches(config, arrays, B, layout.batch_shards, local_shards),
        total_steps=min(config.steps or updates, updates),
        # Operation by operation it would be a dozen programs to compile.
        schedule=jax.jit(schedule),
        strategy=choose_strategy(config.strategy, task, devices, layout),
        layout=layout,
        processes=processes,
        data_fingerprint=data_fingerprint,
    )


def load_custom_parts(config: Config, custom: CustomParts) -> CustomParts:
    """Add the parts that the configuration names by file, as in `my_file.py:Net`."""
    return custom._replace(
        model=custom.model or load_custom("model", config.model),
        optimizer=custom.optimizer or load_custom("optimizer", config.optimizer),
        schedule=custom.schedule or load_custom("schedule", config.schedule),
    )


def read_data(config: Config, custom: CustomParts, processes: Processes) -> DataSet:
    """Read the data set, or convert yours.

    Process 0 reads first, because it may have to download the data set.
    """
    if not processes.is_process_0:
        processes.wait("the data set")
    if custom.data is None:
        data = load_data(config.dataset, config.data_dir)
    else:
        data = make_data_set(custom.data)
    if processes.is_process_0:
        processes.wait("the data set")
    return data


def require_same_data(
    config: Config, data: DataSet, processes: Processes
) -> str | None:
    """Return the fingerprint of the data, which all processes must have in common.

    It takes a pass over the data, so a run that never compares it gets None.
    """
    if not config.workdir and processes.count == 1:
        return None
    data_fingerprint = fingerprint(data)
    processes.require_same({"the content of the data": data_fingerprint})
    return data_fingerprint


def make_task(
    config: Config,
    custom: CustomParts,
    model: nnx.Module,
    schedule: optax.Schedule,
    augment: Any = None,
) -> Task:
    """Make the task of a model: its loss, its optimizer, and what is trained."""
    trainable = custom.trainable
    if trainable is None:
        trainable = config.trainable
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
        if config.label_smoothing:
            check_effects(config, {"label_smoothing": "the built-in loss"})
        if custom.metrics is not None:
            raise UserError(
                "metrics= is for the cross-entropy: return them in the metrics of your "
                "loss's MetricSums"
            )
    params_filter = trainable_filter(model, trainable)
    freeze_batch_norms(model, params_filter)
    if custom.optimizer is not None:
        check_optimizer(custom.optimizer, schedule, nnx.state(model, params_filter))
    return Task(
        model,
        make_optimizer(config, schedule, custom.optimizer),
        seed=config.seed,
        dtype=config.dtype,
        loss=loss,
        classifies=classifies,
        augment=augment,
        accumulate=config.accumulate,
        trainable=params_filter,
    )


def make_layout(
    config: Config, task: Task, arrays: DataSet, devices: Sequence[jax.Device]
) -> MeshLayout:
    """Lay the model's arrays and the batch out over the devices."""
    # Only its shape is needed, to see which of its axes the mesh can split.
    example = jax.tree.leaves(arrays.train.select(np.arange(1)).inputs)[0][0]
    return fit_layout(
        devices,
        task,
        example.shape,
        mesh=config.mesh,
        layout=config.layout,
        shard_state=config.shard_state,
    )


def make_batches(
    config: Config, arrays: DataSet, B: int, shards: int, local_shards: range
) -> dict[str, Batches]:
    """Cut each part of the data into batches.

    Args:
        config: The settings.
        arrays: The data set.
        B: The global batch size.
        shards: N, over which each batch is split.
        local_shards: Which of them this process reads.
    """
    make = functools.partial(Batches, devices=shards, local_shards=local_shards)
    batches = {}
    for name, part in arrays.parts.items():
        if name == "train":
            batches[name] = make(
                part, B, accumulate=config.accumulate, shuffle_seed=config.seed
            )
        else:
            batches[name] = make(part, max(B, EVALUATION_BATCH_PER_DEVICE * shards))
    return batches


def global_batch_size(config: Config, shards: int, examples: int) -> int:
    """Return the global batch size B from the settings, by default 64.

    One that is larger than the data is refused.
    """
    name = "global_batch_size"
    multiplier = 1
    if config.per_device_batch_size:
        name = "per_device_batch_size"
        multiplier = shards
    value = getattr(config, name) or min(64, examples)
    size = value * multiplier
    if size > examples:
        raise UserError(
            f"{flag(name, value)} on {shards} device(s) takes {size} examples an "
            f"update, but the training set has {examples}: use at most "
            f"{flag(name, examples // multiplier)}"
        )
    if config.accumulate > size:
        raise UserError(
            f"--accumulate {config.accumulate} cuts a global batch of {size} into more "
            f"micro-batches than it has examples: use at most --accumulate {size}"
        )
    return size


def choose_schedule(
    config: Config, custom: CustomParts, B: int, updates_per_epoch: int, updates: int
) -> optax.Schedule:
    """Return the learning rate, a function of the number of updates made."""
    if custom.schedule is None:
        return make_schedule(config, B, updates_per_epoch, updates)
    check_schedule(custom.schedule)
    return custom.schedule


def choose_strategy(
    name: str, task: Task, devices: Sequence[jax.Device], layout: MeshLayout
) -> Strategy:
    """Make the strategy of a run, in `steps/`, or in `sharding/` for a split state."""
    if layout.splits_state:
        return make_split_strategy(task, layout)
    return STRATEGIES[name](task, devices)


def complete_config(config: Config, custom: CustomParts, task: Task, B: int) -> Config:
    """Return the settings as the header and config.json show them.

    They name your Python values, and have the global batch size.
    """
    names: dict[str, Any] = {}
    if custom.data is not None:
        names["dataset"] = PYTHON_DATA
    if custom.model is not None:
        names["model"] = task.name
    if custom.trainable is not None:
        names["trainable"] = tuple(named_leaves(task.split_arrays(task.model)[0]))
    for setting in ("optimizer", "schedule"):
        function = getattr(custom, setting)
        if function is None:
            continue
        name = getattr(function, "__name__", type(function).__name__)
        # config.json must not say that a built-in one was used.
        if name in (*OPTIMIZERS, *SCHEDULES):
            name = f"your {name}"
        names[setting] = name
    return dataclasses.replace(
        config, **names, global_batch_size=B, per_device_batch_size=None
    )


def rebuild_task(config: Config, **python_values: Any) -> Task:
    """Make the task of a run whose state is only read.

    It's built without a schedule, because the learning rate isn't part of the state.
    """
    no_schedule = optax.constant_schedule(0.0)
    custom = CustomParts(**python_values)._replace(schedule=no_schedule)
    custom = load_custom_parts(config, custom)
    make_model = custom.model or MODELS[config.model]
    model = build_model(make_model, config.seed, config.dtype)
    return make_task(config, custom, model, no_schedule)
