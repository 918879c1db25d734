"""From the configuration to values: devices, data in batches, the task and the strategy's functions.

This is where the rooms meet, and the only place that takes the configuration apart. Lesson 14 teaches this file.
"""

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from pmapdp import devices as device_module
from pmapdp import steps
from pmapdp.config import Config, flag
from pmapdp.custom.augmentation import augmented
from pmapdp.custom.built_model import built_model
from pmapdp.custom.checks import check_own, check_task
from pmapdp.custom.data import fingerprint, make_data_set
from pmapdp.custom.training import (
    check_best,
    check_optimizer,
    check_schedule,
    check_trainable,
    filter_of,
    names_of_trained,
    own_name,
)
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import DataSet
from pmapdp.distributed import SINGLE_PROCESS, Peers
from pmapdp.errors import DivergedError, EvaluationError, UserError, require
from pmapdp.loss import MetricSums, cross_entropy
from pmapdp.metrics import Meter, Totals
from pmapdp.optimizer import make_optimizer, make_schedule
from pmapdp.registry import MODELS, featurize, find_model, find_rule, load_data
from pmapdp.sharding import split_step, zero
from pmapdp.sharding.fit import fit_layout
from pmapdp.sharding.layout import MeshLayout
from pmapdp.sharding.notation import check_sharding, number_of_devices
from pmapdp.state import Task, is_finite
from pmapdp.steps.placing import place_ahead
from pmapdp.steps.shared import Strategy

EVALUATION_BATCH_PER_DEVICE = 64


@dataclass(frozen=True)
class Job:
    """All that a run needs before its first update.

    Attributes:
        config: what was asked for; with a model or data of one's own it has their names.
        devices: N devices.
        data: the data set, in arrays.
        task: what is trained.
        train_batches: the training set in its order, epoch by epoch.
        test_batches: the test set; None where there is none.
        validation_batches: what is measured after each epoch in its place; None where there is none.
        total_steps: number of updates after which the run ends.
        schedule: number of updates made to learning rate.
        strategy: the five functions of `config.strategy`.
        layout: which shard of every array each device holds.
        peers: the processes that own the devices.
        content: tells data sets of the same name apart, `fingerprint`; None where nobody compares it.
    """

    config: Config
    devices: list[jax.Device]
    data: DataSet
    task: Task
    train_batches: Batches
    test_batches: Batches | None
    validation_batches: Batches | None
    total_steps: int
    schedule: Callable[[Any], Any]
    strategy: Strategy
    layout: MeshLayout
    peers: Peers
    content: str | None

    @property
    def global_batch_size(self) -> int:
        """B, examples per update over all devices."""
        return self.train_batches.batch_size

    @property
    def per_device_batch_size(self) -> int:
        """b, the largest number of examples that one device gets in an update."""
        return math.ceil(self.global_batch_size / self.layout.batch_shards)

    def rest_of_epoch(self, step: int) -> contextlib.AbstractContextManager[Iterator[Batch]]:
        """Place the batches that are left of an epoch after update `step` of the run, two ahead of the loop."""
        epoch, done = divmod(step, self.train_batches.per_epoch)
        batches = itertools.islice(self.train_batches.epoch(epoch, done), self.total_steps - step)
        return place_ahead(batches, self.strategy.place_batch)

    @property
    def measured(self) -> str:
        """What is measured after each epoch: validation, test, or, where there is neither, train."""
        return "validation" if self.validation_batches else "test" if self.test_batches else "train"

    def evaluate(self, state: Any, part: str | None = None) -> Totals:
        """Loss and metrics of a placed state over exactly one part of the data set: `validation` or `test`, or what is
        measured after each epoch. Without such a part there are no figures.

        Raises:
            DivergedError: the state is no longer finite.
            EvaluationError: the loss is not finite, though the state is.
        """
        meter, part = Meter(), part or self.measured
        batches = self.validation_batches if part == "validation" else self.test_batches
        if batches is None:
            return Totals()
        try:
            with place_ahead(batches.epoch(0), self.strategy.place_batch) as placed:
                for step, batch in enumerate(placed):
                    meter.add(step + 1, self.strategy.eval_step(state, batch), batches.examples_in(step))
            return meter.finish()
        except DivergedError as error:
            if not is_finite(state):
                raise DivergedError(
                    "the state is not finite after an update whose loss was: try a lower --learning-rate, "
                    "--warmup-steps 100, or --clip-norm 1"
                ) from None
            first = (error.step - 1) * batches.batch_size
            raise EvaluationError(
                f"the {part} loss is not finite, though the state is: look at the {part} examples from {first} to "
                f"{min(first + batches.batch_size, batches.examples) - 1}, counted from 0"
            ) from None


def prepare(
    config: Config,
    peers: Peers = SINGLE_PROCESS,
    *,
    model: Callable[..., nnx.Module] | None = None,
    data: DataSet | None = None,
    loss: Callable[..., MetricSums] | None = None,
    metrics: Callable[..., dict[str, Any]] | None = None,
    optimizer: Callable[..., optax.GradientTransformation] | None = None,
    schedule: optax.Schedule | None = None,
    trainable: Any = None,
) -> Job:
    """Find the devices, read the data, build the task and the steps. Nothing is compiled yet. For float64, call it and
    use what it returns inside `jax.enable_x64(True)`.

    Args:
        config: what to do.
        peers: the processes that take part.
        model: builds the network, in the place of the one that the configuration names; see `pmapdp.state.build`.
        data: in the place of the data set that the configuration names; see `pmapdp.custom.data.make_data_set`.
        loss: in the place of the model's own, `model.loss`, or else of the cross-entropy; see `Task.loss`.
        metrics: of a classifier, a function of (logits, batch) that returns further sums by name.
        optimizer: a function of the schedule that returns an update rule of optax, for example `optax.lion`.
        schedule: a function of the number of updates made that returns the learning rate.
        trainable: which parameters are trained, a filter of Flax; the others stay, also where weights decay.

    Raises:
        UserError: the configuration fits neither the machine nor the data, or the processes differ.
    """
    require(Config, "config", config, "pmapdp.config.Config(devices=8)")
    require(Peers, "peers", peers, "none")
    check_sharding(config.mesh, config.layout, config.shard_state, config.strategy)
    if config.dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise UserError(
            "--dtype float64 needs 64 bits, which are off in JAX: prepare and use the job inside jax.enable_x64(True), "
            "or set JAX_ENABLE_X64=1 in the environment"
        )
    number = number_of_devices(config.devices, config.mesh, peers.count)
    local = device_module.choose(1 if config.strategy == "single" else number)
    if not peers.first:
        peers.wait("the data set")  # process 0 may have to download it
    if data is not None:
        data, config = make_data_set(data), dataclasses.replace(config, dataset="arrays")
    else:  # before code of the user's, which may change the current folder
        data = load_data(config.dataset, config.data_dir)
    rate = find_rule("schedule", config.schedule) if schedule is None else schedule
    if rate is not None:
        check_schedule(rate)
    rule = find_rule("optimizer", config.optimizer) if optimizer is None else optimizer
    task = make_task(config, model, loss, metrics, trainable)
    compared = config.workdir is not None or peers.count > 1
    content = fingerprint(data) if compared else None
    data, _ = featurize(data, task.model)
    own = config.model not in MODELS or any(each is not None for each in (model, loss, metrics))
    check_task(task, data, own=own)
    names: dict[str, Any] = {"model": task.name} if model is not None else {}
    names |= {"trainable": names_of_trained(task)} if trainable is not None else {}
    names |= {"optimizer": own_name(optimizer)} if optimizer is not None else {}
    names |= {"schedule": own_name(schedule)} if schedule is not None else {}
    config = dataclasses.replace(config, **names)
    if peers.first:
        peers.wait("the data set")
    if peers.count > 1:
        peers.require_same({f"the content of the data set {config.dataset}": content})
    devices = device_module.of_all_processes(local)
    asked: dict[str, Any] = {"mesh": config.mesh, "layout": config.layout, "shard_state": config.shard_state}
    inputs = jax.tree.leaves(data.train.take(np.arange(1)).inputs)
    layout = fit_layout(devices, task, inputs[0].shape[1:], **asked)
    shards, here = layout.batch_shards, layout.shards_on(local, task)
    B = global_batch_size(config, shards, data.train.examples)
    train_batches = Batches(
        data.train, B, devices=shards, here=here, accumulate=config.accumulate, shuffle_seed=config.seed
    )
    test_batches, validation_batches = (
        None if part is None else Batches(part, max(B, EVALUATION_BATCH_PER_DEVICE * shards), devices=shards, here=here)
        for part in (data.test, data.validation)
    )
    check_best(config.best, task, train_batches)
    all_steps = config.epochs * train_batches.per_epoch
    schedule = rate or make_schedule(config, B, train_batches.per_epoch, all_steps)
    if rule is not None:
        check_optimizer(rule, schedule, task)
    task = augmented(dataclasses.replace(task, optimizer=make_optimizer(config, schedule, rule)), data.augment)
    return Job(
        config=config,
        devices=devices,
        data=data,
        task=task,
        train_batches=train_batches,
        test_batches=test_batches,
        validation_batches=validation_batches,
        total_steps=min(config.steps or all_steps, all_steps),
        schedule=jax.jit(schedule),  # operation by operation it would be a dozen programs to compile
        strategy=make_strategy(config.strategy, task, devices, layout),
        layout=layout,
        peers=peers,
        content=content,
    )


def make_task(
    config: Config,
    model: Callable[..., nnx.Module] | None = None,
    loss: Callable[..., MetricSums] | None = None,
    metrics: Callable[..., dict[str, Any]] | None = None,
    trainable: Any = None,
) -> Task:
    """What is trained, without its optimizer, which depends on how the batch is split. The other arguments as for
    `prepare`."""
    check_own(model, loss, metrics)
    model = find_model(config.model) if model is None else model
    built = built_model(model, config.seed, config.dtype)
    chosen = config.trainable if trainable is None else trainable
    check_trainable(built, chosen)
    usual = functools.partial(cross_entropy, label_smoothing=config.label_smoothing, metrics=metrics)
    own = loss or getattr(type(built), "loss", None)
    if own is not None and metrics is not None:
        raise UserError("metrics= is for the cross-entropy: return them as others of MetricSums in a loss of your own")
    return Task(
        built,
        seed=config.seed,
        dtype=config.dtype,
        loss=own or usual,
        accumulate=config.accumulate,
        trainable=filter_of(chosen),
    )


def make_strategy(name: str, task: Task, devices: Sequence[jax.Device], layout: MeshLayout) -> Strategy:
    """The five functions of a strategy on `devices`, which hold the shards of every array that the layout says."""
    if name == "jit" and (task.accumulate > 1 or layout.splits_state):
        return split_step.make_strategy(task, layout)
    if layout.shard_state == "optimizer":
        return split_step.make_strategy(task, layout)._replace(train_step=zero.make_train_step(name, task, layout))
    return steps.make_strategy(name, task, devices)


def global_batch_size(config: Config, devices: int, examples: int) -> int:
    """B, from whichever of the two batch sizes is given.

    Raises:
        UserError: it is larger than the training set, or smaller than the accumulation steps.
    """
    name, times = ("per_device_batch_size", devices) if config.per_device_batch_size else ("global_batch_size", 1)
    given = getattr(config, name) or min(64, examples)
    size = given * times
    if size > examples:
        raise UserError(
            f"{flag(name)} {given} on {devices} device(s) takes {size} examples an update, but the training set of "
            f"{config.dataset} has {examples}: use at most {flag(name)} {examples // times}"
        )
    if config.accumulate > size:
        raise UserError(
            f"--accumulate {config.accumulate} cuts a global batch of {size} into more micro-batches than it has "
            f"examples: use at most --accumulate {size}"
        )
    return size
