"""From the configuration to values: devices, data in batches, the task and the strategy's functions.

This is where the rooms meet, and the only place that takes the configuration apart.
"""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import nnx

from pmapdp import devices as device_module
from pmapdp.config import Config, check, flag
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import DataSet
from pmapdp.errors import UserError
from pmapdp.loss import MetricSums, cross_entropy
from pmapdp.metrics import Meter, Totals
from pmapdp.optimizer import make_optimizer, make_schedule
from pmapdp.own.checks import check_data, check_task
from pmapdp.processes.peers import ALONE, Peers
from pmapdp.registry import find_model, load_data, viewed
from pmapdp.sharding.fit import fit_layout
from pmapdp.sharding.layout import Layout
from pmapdp.sharding.notation import check_sharding, number_of_devices
from pmapdp.sharding.split_step import make_steps
from pmapdp.state import Task
from pmapdp.steps.shared import Steps

EVALUATION_BATCH_PER_DEVICE = 64


class Dispatch(NamedTuple):
    """What the host starts with one call: up to S updates.

    Attributes:
        place: (host `Batch` of S batches, number of updates) to the arguments of `run` on the devices.
        run: (state, *placed) to (state, `MetricSums`) after that many updates; the given state's memory is reused. The
            sums of each update are one entry of `[S]`, or `[]` where S is 1.
    """

    place: Callable[[Batch, int], tuple[Any, ...]]
    run: Callable[..., tuple[Any, Any]]


@dataclass(frozen=True)
class Job:
    """All that a run needs before its first step.

    Attributes:
        devices: N devices.
        data: the data set, in arrays.
        task: what is trained.
        make_steps: from a task to its `Steps` on these devices.
        train_batches: the training set in its order, epoch by epoch.
        test_batches: the test set.
        total_steps: number of updates after which the run ends.
        schedule: number of updates made to learning rate.
        ends: numbers of updates, at whose multiples a dispatch must end, so that a checkpoint can be written or the
            devices' copies of the state can be compared.
        steps: the strategy's five functions.
        dispatch: the training step, up to S times at once.
        steps_per_dispatch: S.
        layout: which shard of every array each device holds.
        peers: the processes that own the devices.
    """

    devices: list[jax.Device]
    data: DataSet
    task: Task
    make_steps: Callable[[Task], Steps]
    train_batches: Batches
    test_batches: Batches
    total_steps: int
    schedule: Callable[[Any], Any]
    ends: list[int]
    steps: Steps
    dispatch: Dispatch
    steps_per_dispatch: int
    layout: Layout
    peers: Peers

    @property
    def global_batch_size(self) -> int:
        """B, examples per update over all devices."""
        return self.train_batches.batch_size

    @property
    def per_device_batch_size(self) -> int:
        """b, the largest number of examples that one device gets in an update."""
        return math.ceil(self.global_batch_size / self.layout.batch_shards)

    def dispatches(self, step: int) -> Iterator[tuple[int, Any]]:
        """What is left of an epoch after update `step` of the run: each time a number of updates and their batches on
        the devices. A batch is placed when it is asked for, while the devices still compute what was started."""
        epoch, done = divmod(step, self.train_batches.steps)
        each = list(self.counts(step, min((epoch + 1) * self.train_batches.steps, self.total_steps)))
        batches = self.train_batches.several(epoch, done, each, self.steps_per_dispatch)
        for count, batch in zip(each, batches, strict=True):
            yield count, self.dispatch.place(batch, count)

    def counts(self, step: int, end: int) -> Iterator[int]:
        """The number of updates of each dispatch after update `step` up to `end`."""
        while step < end:
            count = min(self.steps_per_dispatch, end - step, *(every - step % every for every in self.ends))
            yield count
            step += count

    def train_steps(self, state: Any, *placed: Any) -> tuple[Any, Any]:
        """The updates of a dispatch: (state, what `dispatches` gave) to (state, `MetricSums` of each)."""
        return self.dispatch.run(state, *placed)

    def evaluate(self, state: Any) -> Totals:
        """Loss and accuracy of a placed state over exactly the test set."""
        meter = Meter()
        for step, batch in enumerate(self.test_batches.epoch(0), start=1):
            meter.add(step, self.steps.eval_step(state, self.steps.place_batch(batch)))
        return meter.finish()


def prepare(
    config: Config,
    peers: Peers = ALONE,
    *,
    model: Callable[..., nnx.Module] | None = None,
    data: DataSet | None = None,
    loss: Callable[..., MetricSums] | None = None,
) -> Job:
    """Find the devices, read the data, build the task and the steps. Nothing is compiled yet. For float64, call it and
    use what it returns inside `jax.enable_x64(True)`.

    Args:
        config: what to do.
        peers: the processes that take part.
        model: builds the network, in the place of the one that the configuration names; see `Task.model`.
        data: arrays in the place of the data set that the configuration names.
        loss: in the place of the model's own, `model.loss`, or else of the cross-entropy; see `Task.loss`.

    Raises:
        UserError: the configuration fits neither itself, nor the machine, nor the data, or the processes differ.
    """
    check(config)
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
    task = make_task(config, model, loss)
    data, _ = viewed(data or load_data(config.dataset, config.data_dir), task.model)
    data = check_data(data)
    check_task(task, data, classifies=loss is None and not hasattr(task.model, "loss"))
    if peers.first:
        peers.wait("the data set")
    if peers.count > 1:
        peers.require_same("devices and data", own_facts(local, data, config.dataset))
    devices = device_module.of_all_processes(local)
    asked: dict[str, Any] = {"mesh": config.mesh, "layout": config.layout, "shard_state": config.shard_state}
    layout = fit_layout(devices, task, data.train.inputs.shape[1:], **asked)
    shards, here = layout.batch_shards, layout.shards_on(local, task)
    B = global_batch_size(config, shards, len(data.train.labels))
    train_batches = Batches(
        data.train, B, devices=shards, here=here, accumulate=config.accumulate, shuffle_seed=config.seed
    )
    test_batches = Batches(data.test, max(B, EVALUATION_BATCH_PER_DEVICE * shards), devices=shards, here=here)
    all_steps = config.epochs * train_batches.steps
    schedule = make_schedule(config, B, train_batches.steps, all_steps)
    task = dataclasses.replace(task, optimizer=make_optimizer(config, schedule))
    make = functools.partial(make_steps, config.strategy, devices=devices, layout=layout)
    steps = make(task)
    job = Job(
        devices=devices,
        data=data,
        task=task,
        make_steps=make,
        train_batches=train_batches,
        test_batches=test_batches,
        total_steps=min(config.steps or all_steps, all_steps),
        schedule=jax.jit(schedule),  # operation by operation it would be a dozen programs to compile
        ends=[every for every in (config.checkpoint_every, config.check_replicas) if every],
        steps=steps,
        dispatch=Dispatch(lambda batch, count: (steps.place_batch(batch),), steps.train_step),
        steps_per_dispatch=1,
        layout=layout,
        peers=peers,
    )
    # The one seam for simulated devices: what `pmapdp/cpu/` makes faster there has the same results. Accelerators take
    # of it what is asked for, several updates in a dispatch.
    if devices[0].platform == "cpu" or (config.steps_per_dispatch or 1) > 1:
        from pmapdp.cpu import fit

        return fit(job, config.strategy, config.steps_per_dispatch)
    return job


def make_task(
    config: Config, model: Callable[..., nnx.Module] | None = None, loss: Callable[..., MetricSums] | None = None
) -> Task:
    """What is trained, with learning rate 0: that depends on how the batch is split. `model` and `loss` as for
    `prepare`."""
    model = model or find_model(config.model)
    loss = loss or getattr(model, "loss", None)
    return Task(
        model,
        make_optimizer(config, lambda step: 0.0),
        config.seed,
        config.dtype,
        loss or functools.partial(cross_entropy, label_smoothing=config.label_smoothing),
        config.accumulate,
    )


def own_facts(devices: list[jax.Device], data: DataSet, dataset: str) -> dict[str, Any]:
    """What one process brings to a run with others, under the names that a user knows."""
    content = hashlib.sha256()
    for array in (*data.train, *data.test):
        content.update(np.ascontiguousarray(array).data)
    return {
        "the number of its devices": len(devices),
        "the kind of its devices": devices[0].device_kind,
        f"the content of the data set {dataset}": content.hexdigest()[:16],
    }


def global_batch_size(config: Config, devices: int, examples: int) -> int:
    """B, from whichever of the two batch sizes is given.

    Raises:
        UserError: it is larger than the training set, or smaller than the accumulation steps.
    """
    name, times = ("per_device_batch_size", devices) if config.per_device_batch_size else ("global_batch_size", 1)
    given = getattr(config, name) or 64
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
