"""A configuration made concrete: devices, data in batches, the task and the strategy's five functions."""

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pmapdp import devices as device_module
from pmapdp.config import Config, check
from pmapdp.cpu.dispatch import counts, in_a_loop, updates_at_once
from pmapdp.cpu.loop import Dispatch, one_by_one, several
from pmapdp.data import CORPORA, load
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import DataSet
from pmapdp.errors import UserError
from pmapdp.metrics import Meter, Totals
from pmapdp.models import VIEWS
from pmapdp.optimizer import make_optimizer, make_schedule
from pmapdp.processes.peers import ALONE, Peers
from pmapdp.sharding.fit import fit_layout, number_of_devices
from pmapdp.sharding.layout import Layout
from pmapdp.state import Task, make_task
from pmapdp.steps import Steps, make_steps

EVALUATION_BATCH_PER_DEVICE = 64


@dataclass(frozen=True)
class Job:
    """All that a run needs before its first step.

    Attributes:
        config: what was asked for.
        devices: N devices.
        data: the data set.
        global_batch_size: B, examples per update over all devices.
        train_batches: the training set in its order, epoch by epoch.
        test_batches: the test set.
        total_steps: number of updates after which the run ends.
        schedule: number of updates made to learning rate.
        task: model, objective and update rule.
        steps: the strategy's five functions.
        steps_per_dispatch: S, the most updates that the host starts at once.
        dispatch: the strategy's training step, up to S times at once.
        layout: how the arrays lie on the devices; None for a single one.
        peers: the processes that own the devices.
    """

    config: Config
    devices: list[jax.Device]
    data: DataSet
    global_batch_size: int
    train_batches: Batches
    test_batches: Batches
    total_steps: int
    schedule: Callable[[Any], Any]
    task: Task
    steps: Steps
    steps_per_dispatch: int
    dispatch: Dispatch
    layout: Layout | None = None
    peers: Peers = ALONE

    @property
    def batch_shards(self) -> int:
        """Into how many parts the global batch is split: N, or less where a mesh splits the model too."""
        return self.layout.batch_shards if self.layout else 1

    @property
    def per_device_batch_size(self) -> int:
        """b, the largest number of examples that one device gets in an update."""
        return math.ceil(self.global_batch_size / self.batch_shards)

    def dispatches(self, step: int) -> Iterator[tuple[int, Batch]]:
        """What is left of an epoch after update `step` of the run: number of updates and their batches, each time."""
        epoch, done = divmod(step, self.train_batches.steps)
        end = min((epoch + 1) * self.train_batches.steps, self.total_steps)
        each = list(counts(self.config, self.steps_per_dispatch, step, end))
        return zip(each, self.train_batches.several(epoch, done, each, self.steps_per_dispatch), strict=True)

    def evaluate(self, state: Any) -> Totals:
        """Loss and accuracy of a placed state over exactly the test set."""
        meter = Meter()
        for step, batch in enumerate(self.test_batches.epoch(0), start=1):
            meter.add(step, self.steps.eval_step(state, self.steps.place_batch(batch)))
        return meter.finish()


def prepare(config: Config, peers: Peers = ALONE) -> Job:
    """Find the devices, read the data, build the task and the steps. Nothing is compiled yet.

    Raises:
        UserError: the configuration fits neither itself, nor the machine, nor the data, or the processes differ.
    """
    check(config)
    check_pair(config.model, config.dataset)
    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    local = device_module.choose(1 if config.strategy == "single" else devices_here(config, peers))
    if not peers.first:
        peers.wait("the data set")  # process 0 may have to download it
    data = load(config.dataset, config.data_dir, VIEWS[config.model])
    if peers.first:
        peers.wait("the data set")
    peers.require_same("devices and data", own_facts(local, data, config))
    devices = device_module.of_all_processes(local)
    layout = None
    if config.strategy != "single":  # the layout needs no learning rate, which depends on how the batch is split
        any_rate = make_task(config, make_optimizer(config, lambda step: 0.0))
        layout = fit_layout(config, devices, any_rate, data.train.inputs.shape[1:])
    shards = layout.batch_shards if layout else 1
    here = layout.shards_on(local, any_rate) if layout else range(1)
    B = global_batch_size(config, shards, len(data.train.labels))
    train_batches = Batches(
        data.train, B, devices=shards, here=here, accumulate=config.accumulate, shuffle_seed=config.seed
    )
    test_size = max(B, EVALUATION_BATCH_PER_DEVICE * shards)
    all_steps = config.epochs * train_batches.steps
    schedule = make_schedule(config, B, train_batches.steps, all_steps)
    task = make_task(config, make_optimizer(config, schedule))
    steps = make_steps(config.strategy, task, devices, layout)
    total_steps = min(config.steps or all_steps, all_steps)
    loop = in_a_loop(config, devices, peers)
    S = updates_at_once(config, loop, train_batches, total_steps)
    return Job(
        config=config,
        devices=devices,
        data=data,
        global_batch_size=B,
        train_batches=train_batches,
        test_batches=Batches(data.test, test_size, devices=shards, here=here),
        total_steps=total_steps,
        schedule=schedule,
        task=task,
        steps=steps,
        steps_per_dispatch=S,
        dispatch=several(steps, S, shards) if loop else one_by_one(steps),
        layout=layout,
        peers=peers,
    )


def check_pair(model: str, dataset: str) -> None:
    """Refuse a model of images for texts, and the other way round.

    Raises:
        UserError: with the models that fit the data set.
    """
    takes_images, holds_images = VIEWS[model] == "images", dataset not in CORPORA
    if takes_images != holds_images:
        fitting = [f"--model {name}" for name, view in VIEWS.items() if (view == "images") == holds_images]
        raise UserError(
            f"--model {model} takes {'images' if takes_images else 'texts'}, and --dataset {dataset} holds "
            f"{'images' if holds_images else 'texts'}: use {', '.join(fitting[:-1])} or {fitting[-1]}, or "
            f"--dataset {'digits' if takes_images else 'reviews'}"
        )


def devices_here(config: Config, peers: Peers) -> int | None:
    """How many devices this process is to have; None where the configuration says nothing."""
    number = number_of_devices(config)
    return number // peers.count if number and config.devices is None else number


def own_facts(devices: list[jax.Device], data: DataSet, config: Config) -> dict[str, Any]:
    """What one process brings to a run with others, under the names that a user knows."""
    content = hashlib.sha256()
    for array in jax.tree.leaves(data):
        content.update(np.ascontiguousarray(array).data)
    return {
        "the number of its devices": len(devices),
        "the kind of its devices": devices[0].device_kind,
        f"the content of the data set {config.dataset}": content.hexdigest()[:16],
    }


def global_batch_size(config: Config, devices: int, examples: int) -> int:
    """B, from whichever of the two batch sizes is given.

    Raises:
        UserError: it is larger than the training set, or smaller than the accumulation steps.
    """
    if config.per_device_batch_size:
        size, given = (
            config.per_device_batch_size * devices,
            f"--per-device-batch-size {config.per_device_batch_size}",
        )
        largest = f"--per-device-batch-size {examples // devices}"
    else:
        size = config.global_batch_size or 64
        given, largest = f"--global-batch-size {size}", f"--global-batch-size {examples}"
    if size > examples:
        raise UserError(
            f"{given} on {devices} device(s) takes {size} examples a step, but the training set of {config.dataset} "
            f"has {examples}: use at most {largest}"
        )
    if config.accumulate > size:
        raise UserError(
            f"--accumulate {config.accumulate} cuts a global batch of {size} into more parts than it has examples: "
            f"use at most --accumulate {size}"
        )
    return size
