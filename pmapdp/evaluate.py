"""Print the exact loss and metrics on the test set, of a run or an exported model.

    python -m pmapdp.evaluate runs/first                # as it was trained
    python -m pmapdp.evaluate runs/first --best         # its best epoch
    python -m pmapdp.evaluate runs/first --strategy jit --devices 3
    python -m pmapdp.evaluate model.zip --dataset my_data.npz  # exported model

Each example of the test set counts exactly once, so strategy and number of devices
change only the rounding.
"""

import dataclasses
import json
import os
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from pmapdp import cli, flags
from pmapdp.config import Config, StrategyName, setting
from pmapdp.custom.data import make_part
from pmapdp.custom.map_style import check_labels
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split, Texts
from pmapdp.devices import choose_devices, describe
from pmapdp.errors import UserError
from pmapdp.export import Exported, check_inputs, load_exported
from pmapdp.job import EVALUATION_BATCH_PER_DEVICE, CustomParts, make_job
from pmapdp.loss import MetricSums
from pmapdp.metrics import Meter
from pmapdp.registry import (
    DATA_SETS,
    load_data,
    parts_from_python,
    require_python_values,
)
from pmapdp.run.saved_run import functions_from_python, load_state
from pmapdp.run.workdir import read_config
from pmapdp.sharding.flags import number_of_devices
from pmapdp.train import evaluate


def evaluate_run(
    workdir: str,
    *,
    strategy: str | None = None,
    devices: int | None = None,
    data_dir: str | None = None,
    best: bool = False,
    model: Callable[..., nnx.Module] | None = None,
    data: Any = None,
    loss: Callable[..., MetricSums] | None = None,
    metrics: Callable[..., dict[str, Any]] | None = None,
    optimizer: Callable[..., optax.GradientTransformation] | None = None,
    schedule: optax.Schedule | None = None,
    trainable: Any = None,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Evaluate the newest checkpoint of a run, or its best epoch's, on the test set.

    Args:
        workdir: The folder of the run.
        strategy: "pmap", "shard_map", "jit" or "single". Default: as in training.
        devices: The number of devices. Default: as in training.
        data_dir: The folder of downloaded data sets. Default: as in training.
        best: Take the checkpoint of the best epoch.
        model: Your network, if you gave it to `train`. The same goes for what follows.
        data: Your data.
        loss: Your loss.
        metrics: Your metrics of a classifier.
        optimizer: Your optimizer.
        schedule: Your schedule.
        trainable: The parameters that you trained.

    Returns:
        Two dictionaries: the loss and metrics by name, and the data set, update,
        strategy and devices they belong to.

    Raises:
        UserError: The folder has no checkpoint, or a value from Python is missing.

    Example:
        metrics, facts = evaluate_run("runs/api", devices=4, model=Net, data=data)
        print(metrics["accuracy"])
    """
    custom = CustomParts(model, data, loss, metrics, optimizer, schedule, trainable)
    python_values = custom._asdict()
    config = read_config(workdir)
    reader = "pmapdp.evaluate.evaluate_run"
    require_python_values(parts_from_python(config), python_values, reader, workdir)
    config = change_config(config, strategy, devices, data_dir)
    # Before the checkpoint is read, which starts JAX.
    choose_devices(number_of_devices(config))
    functions = functions_from_python(workdir)
    require_python_values(functions, python_values, reader, workdir)
    # Before your code runs, which may change the current folder.
    workdir = os.path.abspath(workdir)
    with jax.enable_x64(config.dtype == "float64"):
        job = make_job(config, custom)
        if "test" not in job.batches:
            raise UserError(
                f"{config.dataset} has no test set to evaluate on: "
                "give one, DataSet(train, test)"
            )
        state, _ = load_state(
            workdir, job.task, best=best, data_fingerprint=job.data_fingerprint
        )
        # The same function as in training, so the numbers are also the same.
        means = evaluate(job, job.strategy.place_state(state), "test")
    facts = {
        "dataset": config.dataset,
        "step": int(state.step),
        "strategy": config.strategy,
        "devices": len(job.devices),
        "device_kind": describe(job.devices),
    }
    return means, facts


def change_config(
    config: Config, strategy: str | None, devices: int | None, data_dir: str | None
) -> Config:
    """Return the settings of a run as it's evaluated. None: as in training."""
    # An evaluation needs no learning rate, so your schedule needn't be found.
    changes: dict[str, Any] = {
        "schedule": "constant",
        "switch_epochs": (),
        "switch_factor": Config.switch_factor,
    }
    if data_dir:
        changes["data_dir"] = data_dir
    if strategy is not None or devices is not None:
        # A mesh is for one number of devices, and the other settings don't go with
        # every strategy.
        changes |= {"mesh": None, "layout": "data", "shard_state": "none"}
    if strategy is not None:
        changes["strategy"] = strategy
    if devices is not None or strategy == "single":
        changes["devices"] = devices
    return dataclasses.replace(config, **changes)


def evaluate_file(
    path: str, dataset: str | None = None, data_dir: str | None = None
) -> tuple[dict[str, float], dict[str, Any]]:
    """Evaluate an exported model on the test set of a data set.

    Args:
        path: The exported file.
        dataset: As on the command line. None: the built-in one of the training. The
            name of your data isn't taken from the file: here it may be another file,
            or run its code.
        data_dir: The folder of downloaded data sets.

    Returns:
        (metrics, facts), as `evaluate_run` returns them.
    """
    exported = load_exported(path)
    if dataset is None:
        dataset = str(exported.metadata["dataset"])
        if dataset not in DATA_SETS:
            raise UserError(
                f"{path} was trained on data of yours, {dataset}: "
                "name it, as in --dataset my_data.npz"
            )
    metrics = evaluate_exported(exported, load_data(dataset, data_dir).test)
    facts = {
        "dataset": dataset,
        "step": exported.metadata["step"],
        "strategy": "exported",
        "devices": 1,
        "device_kind": describe(jax.devices()[:1]),
    }
    return metrics, facts


def evaluate_exported(exported: Exported, split: Any) -> dict[str, float]:
    """Return an exported model's loss and metrics over all examples of `split`."""
    with exported.precision():
        part = make_part("the test", split, exported.metadata["labels"])
        part = featurize_part(exported, part)
        arrays = jax.device_put(exported.arrays)
        compute_sums = jax.jit(exported.loss.call)
        batches = Batches(part, EVALUATION_BATCH_PER_DEVICE)
        meter = Meter(is_weighted=batches.is_weighted)
        for number, batch in enumerate(batches.epoch(0)):
            placed = jax.device_put((batch.inputs, batch.labels, batch.weights))
            # The program returns sums by name, because a file can't hold our classes.
            sums = compute_sums(arrays, *placed)
            loss = sums.pop("loss")
            count = sums.pop("count")
            correct = sums.pop("correct", None)  # a model without classes has none
            metric_sums = MetricSums(loss, correct, count, sums)
            meter.add(number + 1, metric_sums, batches.count_examples(number))
        meter.finish()
    return meter.means


def featurize_part(exported: Exported, part: Any) -> Split:
    """Return a part in arrays, and refuse examples that the model doesn't take."""
    if isinstance(part, Texts):
        if exported.featurizer is None:
            raise UserError("the model takes no texts: give the data of its training")
        part = Split(exported.featurizer(part.texts), part.labels)
    check_inputs(exported.metadata, part.select(np.arange(1)).inputs)
    if exported.metadata["classifies"]:
        check_labels("the test", part, len(exported.metadata["labels"]))
    return part


COMMAND = flags.Command(
    usage="python -m pmapdp.evaluate MODEL [flags]",
    example="python -m pmapdp.evaluate runs/first",
    description=__doc__,
)


@dataclass(frozen=True)
class Options:
    """The model, and how to evaluate it."""

    model: str = setting(
        "arguments",
        MISSING,
        "Folder of a run, or an exported file, which holds a program: open only files "
        "from people you trust.",
        positional="MODEL",
    )
    strategy: StrategyName | None = setting(
        "options",
        None,
        "Strategy to evaluate a run with. Default: as in training.",
    )
    devices: int | None = setting(
        "options",
        None,
        "Number of devices to evaluate a run on. Default: as in training.",
    )
    best: bool = setting(
        "options",
        False,
        "Evaluate the best epoch of a run instead of its newest checkpoint.",
    )
    dataset: str | None = setting(
        "options",
        None,
        "Your data for an exported model. Default: the built-in data it comes from.",
    )
    data_dir: str | None = setting(
        "options",
        None,
        "Folder of downloaded data. Default: as in training.",
        metavar="FOLDER",
    )
    json: bool = setting("options", False, "Print the result as one JSON object.")


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = flags.parse(COMMAND, Options, arguments)
    if os.path.isfile(options.model):
        if options.best or options.strategy or options.devices:
            raise UserError(
                f"{options.model} is an exported model, for one device and of one "
                "epoch: leave out --best, --strategy and --devices"
            )
        metrics, facts = evaluate_file(options.model, options.dataset, options.data_dir)
    elif options.dataset:
        raise UserError(
            f"{options.model} is a run, which knows its data: leave out --dataset"
        )
    else:
        metrics, facts = evaluate_run(
            options.model,
            strategy=options.strategy,
            devices=options.devices,
            data_dir=options.data_dir,
            best=options.best,
        )
    if options.json:
        print(json.dumps({"test": metrics} | facts))
        return
    numbers = [
        f"{name} {value:.4f}"
        for name, value in metrics.items()
        if name not in ("loss", "examples")
    ]
    print(f"test loss {metrics['loss']:.6f}", *numbers)
    print(
        f"{metrics['examples']:,} examples of {facts['dataset']}, "
        f"after {facts['step']:,} updates"
    )
    print(f"{facts['strategy']}, {facts['device_kind']}")


if __name__ == "__main__":
    sys.exit(cli.run(main))
