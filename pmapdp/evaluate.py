"""Print exact figures on the test set, of a run or of an exported model.

    python -m pmapdp.evaluate runs/first                # as it was trained
    python -m pmapdp.evaluate runs/first --best         # its best epoch
    python -m pmapdp.evaluate runs/first --strategy jit --devices 3
    python -m pmapdp.evaluate model.zip --dataset my_data.npz  # exported model

The figures are sums over exactly the examples of the test set, so that strategy and
number of devices change only their rounding.
"""

import dataclasses
import json
import os
import sys
from dataclasses import MISSING, dataclass
from typing import Any

import jax
import numpy as np

from pmapdp import cli
from pmapdp.config import StrategyName, setting
from pmapdp.custom.data import make_part
from pmapdp.custom.examples import check_labels
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split, Texts
from pmapdp.devices import describe
from pmapdp.errors import UserError
from pmapdp.export import Exported, describe_arrays, load_exported
from pmapdp.loss import MetricSums
from pmapdp.metrics import Meter
from pmapdp.registry import DATA_SETS, load_data, require_python_values
from pmapdp.run.checkpoints import load_state
from pmapdp.run.workdir import read_config
from pmapdp.train import EVALUATION_BATCH_PER_DEVICE, Custom, evaluate, prepare

COMMAND = cli.Command(
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
        "Folder of a run, or exported file of people you trust.",
        place="MODEL",
    )
    strategy: StrategyName | None = setting(
        "options",
        None,
        "Of a run: how the batch is split and added up; default: as in training.",
    )
    devices: int | None = setting(
        "options",
        None,
        "Of a run: number of devices; default: as in training.",
        takes="FOLDER",
    )
    best: bool = setting(
        "options",
        False,
        "Of a run: the checkpoint of its best epoch instead of the newest.",
    )
    dataset: str | None = setting(
        "options",
        None,
        "Of an exported model: your data; default: the built-in data set.",
    )
    data_dir: str | None = setting(
        "options",
        None,
        "Folder of downloaded data sets; default: as in training.",
        takes="FOLDER",
    )
    json: bool = setting("options", False, "Print the result as one JSON object.")


def evaluate_run(
    workdir: str,
    *,
    strategy: str | None = None,
    devices: int | None = None,
    data_dir: str | None = None,
    best: bool = False,
    **yours: Any,
) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the figures of the newest checkpoint of a run, or of its best epoch, and the facts about them.

    Give `yours` again, `model`, `data` and the like, if `train` was given them as
    Python values.
    """
    config = read_config(workdir)
    require_python_values(config, yours, "pmapdp.evaluate.evaluate_run", workdir)
    changes: dict[str, Any] = {
        "data_dir": data_dir or config.data_dir,
        "strategy": strategy or config.strategy,
        # An evaluation needs no learning rate, so your schedule needn't be found.
        "schedule": "constant",
        "switch_epochs": (),
    }
    if strategy or devices:
        # A mesh is for one number of devices, and the other settings don't go with
        # every strategy.
        changes |= {
            "mesh": None,
            "layout": "data",
            "shard_state": "none",
            "check_replicas": None,
        }
        changes["devices"] = devices or (
            None if strategy == "single" else config.devices
        )
    config = dataclasses.replace(config, **changes)
    workdir = os.path.abspath(
        workdir
    )  # before your code runs, which may change the current folder
    with jax.enable_x64(config.dtype == "float64"):
        job = prepare(config, Custom(**yours))
        if "test" not in job.batches:
            raise UserError(
                f"{config.dataset} has no test set to evaluate on: give one, DataSet(train, test)"
            )
        state, _ = load_state(workdir, job.task, best=best, content=job.content)
        facts = {
            "dataset": config.dataset,
            "step": int(state.step),
            "strategy": config.strategy,
        }
        facts |= {"devices": len(job.devices), "device_kind": describe(job.devices)}
        return evaluate(job, job.strategy.place_state(state), "test"), facts


def evaluate_file(
    path: str, dataset: str | None = None, data_dir: str | None = None
) -> tuple[Any, dict[str, Any]]:
    """Return the figures of an exported model on the test set of a data set, and the facts about them.

    Only a built-in data set is taken from the file: a name of yours may be another file
    here, or run its code.
    """
    exported = load_exported(path)
    if dataset is None:
        dataset = exported.metadata["dataset"]
        if dataset not in DATA_SETS:
            raise UserError(
                f"{path} was trained on data of yours, {dataset}: "
                "name it, as in --dataset my_data.npz"
            )
    data = load_data(str(dataset), data_dir)
    facts = {
        "dataset": dataset,
        "step": exported.metadata["step"],
        "strategy": "exported",
    }
    return evaluate_exported(exported, data.test), facts | {
        "devices": 1,
        "device_kind": describe(jax.devices()[:1]),
    }


def evaluate_exported(exported: Exported, split: Any) -> dict[str, float]:
    """Return the loss and metrics of an exported model over exactly the examples of `split`, arrays or texts."""
    with exported.precision():
        part = make_part("the test", split, exported.metadata["labels"])
        if isinstance(part, Texts):
            if exported.featurizer is None:
                raise UserError(
                    "the model takes no texts: give the data of its training"
                )
            part = Split(exported.featurizer(part.texts), part.labels)
        if (given := describe_arrays(part.select(np.arange(1)).inputs)) != (
            taken := exported.metadata["input"]
        ):
            raise UserError(
                f"the model takes {taken}, and the test set has {given}: give the data of its training"
            )
        if exported.metadata["classifies"]:
            check_labels("the test", part, len(exported.metadata["labels"]))
        arrays, sums = jax.device_put(exported.arrays), jax.jit(exported.loss.call)
        batches = Batches(part, EVALUATION_BATCH_PER_DEVICE)
        meter = Meter(is_weighted=batches.is_weighted)
        for step, batch in enumerate(batches.epoch(0)):
            found = sums(
                arrays, *jax.device_put((batch.inputs, batch.labels, batch.weights))
            )
            named = MetricSums(
                found.pop("loss"), found.pop("correct", None), found.pop("count"), found
            )
            meter.add(step + 1, named, batches.examples_in(step))
        meter.finish()
    return meter.means


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = cli.parse(COMMAND, Options, arguments)
    if os.path.isfile(options.model):
        if options.best or options.strategy or options.devices:
            raise UserError(
                f"{options.model} is an exported model, for one device and of one epoch: leave out --best, --strategy "
                "and --devices"
            )
        means, facts = evaluate_file(options.model, options.dataset, options.data_dir)
    elif options.dataset:
        raise UserError(
            f"{options.model} is a run, which knows its data: leave out --dataset"
        )
    else:
        spread: dict[str, Any] = {
            "strategy": options.strategy,
            "devices": options.devices,
        }
        means, facts = evaluate_run(
            options.model, **spread, data_dir=options.data_dir, best=options.best
        )
    if options.json:
        print(json.dumps({"test": means} | facts))
        return
    others = [
        f"{name} {value:.4f}"
        for name, value in means.items()
        if name not in ("loss", "examples")
    ]
    print(f"test loss {means['loss']:.6f}", *others)
    print(
        f"{means['examples']:,} examples of {facts['dataset']}, after {facts['step']:,} updates"
    )
    print(f"{facts['strategy']}, {facts['device_kind']}")


if __name__ == "__main__":
    sys.exit(cli.run(main))
