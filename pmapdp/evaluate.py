"""Exact figures on the test set, of a run or of an exported model: `python -m pmapdp.evaluate MODEL`.

    python -m pmapdp.evaluate runs/first                            # as it was trained
    python -m pmapdp.evaluate runs/first --strategy jit --devices 3 # the same figures
    python -m pmapdp.evaluate model.zip                             # and the same again

Sums over exactly the examples of the test set, so that strategy and number of devices change only the rounding.
"""

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax

from pmapdp.cli import parse_options
from pmapdp.config import Config
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split, Texts
from pmapdp.devices import describe
from pmapdp.errors import UserError, run_command
from pmapdp.export.read import Exported, load_exported
from pmapdp.job import EVALUATION_BATCH_PER_DEVICE, prepare
from pmapdp.loss import metric_sums
from pmapdp.metrics import Totals
from pmapdp.registry import load_data
from pmapdp.run.checkpoint import load_state
from pmapdp.trained import read_config


@dataclass(frozen=True)
class Options:
    """Loss and accuracy of a trained model over exactly the test set of its data."""

    model: Annotated[str, "MODEL"]
    """Folder of a run, whose newest checkpoint is taken, or a file that python -m pmapdp.export wrote; such a file
    holds a program, so use only files of people whom you trust."""
    strategy: Literal["pmap", "jit", "shard_map", "single"] | None = None
    """Who splits the batch and adds up; default: as in training. An exported model runs on one device."""
    devices: int | None = None
    """Number of devices; default: as in training."""
    data_dir: str | None = None
    """Folder of downloaded data sets; default: $PMAPDP_DATA, else a cache folder in your home."""
    json: bool = False
    """Print the result as one JSON object."""


def respread(config: Config, strategy: str | None, devices: int | None) -> Config:
    """The configuration of a run, spread by another strategy or over another number of devices where they are given."""
    if strategy is None and devices is None:
        return config
    if devices is None and strategy != "single":
        devices = config.devices
    spread: dict[str, Any] = {"strategy": strategy or config.strategy, "devices": devices}
    # A mesh is for one number of devices, and the other settings do not go with every strategy.
    return dataclasses.replace(config, **spread, mesh=None, layout="data", shard_state="none", check_replicas=None)


def evaluate_exported(exported: Exported, split: Split | Texts) -> Totals:
    """Loss and accuracy of an exported model over exactly the examples of `split`; texts go through the view in its
    file, as strings do in use."""
    arrays = Split(exported.view(split.texts), split.labels) if isinstance(split, Texts) else split
    totals, sums = Totals(), jax.jit(metric_sums)
    with exported.precision():
        for batch in Batches(arrays, EVALUATION_BATCH_PER_DEVICE).epoch(0):
            totals = totals.add(sums(*jax.device_put((exported.outputs(batch.inputs)["logits"], batch))))
    return totals


def from_workdir(
    workdir: str, *, strategy: str | None = None, devices: int | None = None, data_dir: str | None = None, **own: Any
) -> tuple[Totals, dict[str, Any]]:
    """The figures of the newest checkpoint of a run, and what they are of.

    Args:
        workdir: its folder.
        strategy, devices, data_dir: as in `Options`.
        own: `model`, `data` and `loss` where `train` was given them as Python values.
    """
    config = respread(read_config(workdir), strategy, devices)
    config = dataclasses.replace(config, data_dir=data_dir or config.data_dir)
    with jax.enable_x64(config.dtype == "float64"):
        job = prepare(config, **own)
        state, _ = load_state(workdir, job.task)
        facts = {"dataset": config.dataset, "step": int(state.step), "strategy": config.strategy}
        facts |= {"devices": len(job.devices), "device_kind": describe(job.devices)}
        return job.evaluate(job.steps.place_state(state)), facts


def from_exported(path: str, data_dir: str | None = None) -> tuple[Totals, dict[str, Any]]:
    """The figures of an exported model on the data set that it was trained for, and what they are of."""
    exported = load_exported(path)
    match exported.metadata:
        case {"dataset": str(dataset), "step": int(step)}:
            totals = evaluate_exported(exported, load_data(dataset, data_dir).test)
        case _:
            raise UserError(f"{path} does not name its data set and its step: name a file of python -m pmapdp.export")
    facts = {"dataset": dataset, "step": step, "strategy": "exported"}
    return totals, facts | {"devices": 1, "device_kind": describe(jax.devices()[:1])}


def main(arguments: list[str]) -> None:
    """The command."""
    options = parse_options(Options, arguments, program="python -m pmapdp.evaluate", example="runs/first")
    if not os.path.isfile(options.model):
        totals, facts = from_workdir(
            options.model, strategy=options.strategy, devices=options.devices, data_dir=options.data_dir
        )
    elif options.strategy is None and options.devices is None:
        totals, facts = from_exported(options.model, options.data_dir)
    else:
        raise UserError(f"{options.model} is an exported model, for one device: leave out --strategy and --devices")
    if options.json:
        result = {"test_loss": totals.mean_loss, "test_accuracy": totals.accuracy, "test_examples": totals.count}
        print(json.dumps(result | facts))
        return
    print(f"test loss {totals.mean_loss:.6f} accuracy {totals.accuracy:.4f}")
    print(f"{totals.count:,} examples of {facts['dataset']}, after {facts['step']:,} updates")
    print(f"{facts['strategy']}, {facts['device_kind']}")


if __name__ == "__main__":
    sys.exit(run_command(main))
