"""Sums over exactly the examples of the test set, so that strategy and number of devices change only the rounding."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import jax

from pmapdp.config import Config
from pmapdp.custom.data import make_part
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import Split, Texts
from pmapdp.devices import describe
from pmapdp.errors import UserError, require
from pmapdp.export.read import Exported, load_exported
from pmapdp.loss import MetricSums, metric_sums, named_sums
from pmapdp.metrics import Meter
from pmapdp.registry import load_data
from pmapdp.run.checkpoints import load_state
from pmapdp.run.workdir import read_config
from pmapdp.train import EVALUATION_BATCH_PER_DEVICE, evaluate, prepare


def respread(config: Config, strategy: str | None, devices: int | None) -> Config:
    """The configuration of a run, spread by another strategy or over another number of devices where they are given."""
    if strategy is None and devices is None:
        return config
    if devices is None and not (isinstance(strategy, str) and strategy == "single"):
        devices = config.devices
    spread: dict[str, Any] = {"strategy": config.strategy if strategy is None else strategy, "devices": devices}
    # A mesh is for one number of devices, and the other settings do not go with every strategy.
    return dataclasses.replace(config, **spread, mesh=None, layout="data", shard_state="none", check_replicas=None)


def evaluate_exported(exported: Exported, split: Any) -> dict[str, float]:
    """The model's loss and metrics over exactly the examples of `split`; texts go through the view in its file, as
    strings do in use."""
    require(Exported, "exported", exported, "pmapdp.export.read.load_exported(path)")
    meter = Meter()
    with exported.precision():
        part = make_part("the test", split, exported.metadata["labels"])
        part = Split(exported.view(part.texts), part.labels) if isinstance(part, Texts) else part
        held = jax.device_put(exported.arrays)
        sums = jax.jit(exported.loss.call if exported.loss else classified(exported))
        batches = Batches(part, EVALUATION_BATCH_PER_DEVICE)
        for step, batch in enumerate(batches.epoch(0)):
            found = sums(held, *jax.device_put((batch.inputs, batch.labels, batch.weights)))
            named = MetricSums(found.pop("loss"), found.pop("correct", None), found.pop("count"), found)
            meter.add(step + 1, named, batches.examples_in(step))
        meter.finish()
    return meter.means


def classified(exported: Exported) -> Callable[..., dict[str, Any]]:
    """The sums of a classifier, for a file that does not hold its loss."""

    def sums(arrays: Any, inputs: Any, labels: Any, weights: Any) -> dict[str, Any]:
        logits = exported.model.call(arrays, inputs)["logits"]
        return named_sums(metric_sums(logits, Batch(inputs, labels, labels, weights)))

    return sums


def evaluate_run(
    workdir: str,
    *,
    strategy: str | None = None,
    devices: int | None = None,
    data_dir: str | None = None,
    best: bool = False,
    **own: Any,
) -> tuple[dict[str, float], dict[str, Any]]:
    """The figures of the newest checkpoint of a run, or of that of its `best` epoch, and what they are of.

    Args:
        workdir: its folder.
        strategy, devices, data_dir: as in `Options`.
        own: `model`, `data` and the like where `train` was given them as Python values.
    """
    config = respread(read_config(workdir), strategy, devices)
    config = dataclasses.replace(config, data_dir=config.data_dir if data_dir is None else data_dir)
    workdir = os.path.abspath(workdir)  # before code of the user's, which may change the current folder
    with jax.enable_x64(config.dtype == "float64"):
        job = prepare(config, **own)
        state = load_state(workdir, job.task, best=best).state
        facts = {"dataset": config.dataset, "step": int(state.step), "strategy": config.strategy}
        facts |= {"devices": len(job.devices), "device_kind": describe(job.devices)}
        if "test" not in job.batches:
            raise without_test(config.dataset)
        return evaluate(job, job.strategy.place_state(state), "test"), facts


def evaluate_file(path: str, data_dir: str | None = None) -> tuple[dict[str, float], dict[str, Any]]:
    """The figures of an exported model on the data set that it was trained for, and what they are of."""
    exported = load_exported(path)
    match exported.metadata:
        case {"dataset": str(dataset), "step": int(step)}:
            data = load_data(dataset, data_dir)
            if data.test is None:
                raise without_test(dataset)
            means = evaluate_exported(exported, data.test)
        case _:
            raise UserError(f"{path} does not name its data set and its step: name a file of python -m pmapdp.export")
    facts = {"dataset": dataset, "step": step, "strategy": "exported"}
    return means, facts | {"devices": 1, "device_kind": describe(jax.devices()[:1])}


def without_test(dataset: str) -> UserError:
    """What to say of a data set without a test set."""
    return UserError(f"{dataset} has no test set, so there is nothing to evaluate: give one, DataSet(train, test)")
