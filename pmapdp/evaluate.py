"""Exact figures on the test set: `python -m pmapdp.evaluate WORKDIR`, or of an exported model with `--exported`.

    python -m pmapdp.evaluate runs/first                            # as it was trained
    python -m pmapdp.evaluate runs/first --strategy jit --devices 3 # the same figures
    python -m pmapdp.evaluate --exported model.zip                  # and the same again

Sums over exactly the examples of the test set, so that strategy and number of devices change only the rounding.
"""

import dataclasses
import json
import sys
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jax

from pmapdp.cli import parse_options
from pmapdp.config import Config
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split, Texts
from pmapdp.devices import describe
from pmapdp.errors import UserError, reason, run_command
from pmapdp.export.read import Exported, load_exported
from pmapdp.job import EVALUATION_BATCH_PER_DEVICE, prepare
from pmapdp.loss import metric_sums
from pmapdp.metrics import Totals
from pmapdp.own import VALUE
from pmapdp.registry import load_data
from pmapdp.run.checkpoint import load_state
from pmapdp.trained import read_config, refuse_values


@dataclass(frozen=True)
class Options:
    """Loss and accuracy of a trained model over exactly the test set of its data."""

    workdir: Annotated[str | None, "[WORKDIR]"] = None
    """Folder of a run; its newest checkpoint is taken."""
    exported: str | None = None
    """Instead of a folder: a file that python -m pmapdp.export wrote."""
    strategy: Literal["pmap", "jit", "shard_map", "single"] | None = None
    """Who splits the batch and adds up; default: as in training. Not for --exported, which runs on one device."""
    devices: int | None = None
    """Number of devices; default: as in training."""
    data_dir: str | None = None
    """Folder of downloaded data sets; default: $PMAPDP_DATA, else a cache folder in your home."""
    json: bool = False
    """Print the result as one JSON object."""


def respread(config: Config, options: Options) -> Config:
    """The configuration of a run, spread as `options` say. The batch size of training plays no part here."""
    strategy = options.strategy or config.strategy
    # Another number of devices or strategy has no use for the run's mesh; evaluation needs no optimizer state.
    same = options.strategy is None and options.devices is None
    return dataclasses.replace(
        config,
        mesh=config.mesh if same else None,
        layout=config.layout if same else "data",
        shard_state="none",
        strategy=strategy,
        devices=config.devices if options.devices is None and strategy != "single" else options.devices,
        data_dir=options.data_dir or config.data_dir,
        global_batch_size=None,
        per_device_batch_size=None,
        accumulate=1,
    )


def evaluate_exported(exported: Exported, split: Split | Texts) -> Totals:
    """Loss and accuracy of an exported model over exactly the examples of `split`; texts go through the view in its
    file, as strings do in use."""
    arrays = Split(exported.view(split.texts), split.labels) if isinstance(split, Texts) else split
    totals, sums = Totals(), jax.jit(metric_sums)
    with exported.precision():
        for batch in Batches(arrays, EVALUATION_BATCH_PER_DEVICE).epoch(0):
            totals = totals.add(sums(exported.outputs(batch.inputs)["logits"], batch))
    return totals


def from_workdir(workdir: str, options: Options = Options(), **own: Any) -> tuple[Totals, dict[str, Any]]:
    """The figures of the newest checkpoint of a run, and what they are of.

    Args:
        workdir: its folder.
        options: how to compute them.
        own: `model`, `data` and `loss` where `train` was given them as Python values.
    """
    config = respread(read_config(workdir), options)
    refuse_values(workdir, "" if "model" in own else config.model, "" if "data" in own else config.dataset)
    job = prepare(config, **own)
    state, _ = load_state(workdir, job.task)
    facts = {"dataset": config.dataset, "step": int(state.step), "strategy": config.strategy}
    facts |= {"devices": len(job.devices), "device_kind": describe(job.devices)}
    return job.evaluate(job.steps.place_state(state)), facts


def from_exported(path: str, options: Options) -> tuple[Totals, dict[str, Any]]:
    """The figures of an exported model on the data set that it was trained for, and what they are of."""
    if options.strategy or options.devices is not None:
        given = "--strategy" if options.strategy else "--devices"
        raise UserError(f"{given} has no effect with --exported, which runs on one device: leave it out")
    exported = load_exported(path)
    dataset = exported.metadata.get("dataset", "unknown")
    if dataset == VALUE:
        raise UserError(
            f"{path} was trained on a Python value, which no command can find: call pmapdp.evaluate.evaluate_exported "
            "with the test set from Python"
        )
    try:
        test = load_data(dataset, options.data_dir).test
        totals = evaluate_exported(exported, test)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:  # as of arrays of another shape
        raise UserError(f"{path} does not take the data set {dataset} ({reason(error)}): export it again") from None
    facts = {"dataset": dataset, "step": exported.metadata.get("step"), "strategy": "exported"}
    return totals, facts | {"devices": 1, "device_kind": describe(jax.devices()[:1])}


def main(arguments: list[str]) -> None:
    """The command."""
    options = parse_options(Options, arguments, program="python -m pmapdp.evaluate", example="runs/first")
    if bool(options.workdir) == bool(options.exported):
        raise UserError(
            "one thing at a time can be evaluated: try python -m pmapdp.evaluate runs/first, or --exported model.zip"
        )
    if options.workdir:
        totals, facts = from_workdir(options.workdir, options)
    else:
        totals, facts = from_exported(str(options.exported), options)
    if options.json:
        result = {"test_loss": totals.mean_loss, "test_accuracy": totals.accuracy, "test_examples": totals.count}
        print(json.dumps(result | facts))
        return
    print(f"test loss {totals.mean_loss:.6f} accuracy {totals.accuracy:.4f}")
    updates = "" if facts["step"] is None else f", after {facts['step']:,} updates"
    print(f"{totals.count:,} examples of {facts['dataset']}{updates}")
    print(f"{facts['strategy']}, {facts['device_kind']}")


if __name__ == "__main__":
    sys.exit(run_command(main))
