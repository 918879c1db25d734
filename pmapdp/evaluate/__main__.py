"""Print exact figures on the test set, of a run or of an exported model.

    python -m pmapdp.evaluate runs/first                # as it was trained
    python -m pmapdp.evaluate runs/first --best         # its best epoch
    python -m pmapdp.evaluate runs/first --strategy jit --devices 3
    python -m pmapdp.evaluate model.zip                 # an exported model

The figures are sums over exactly the examples of the test set, so that strategy
and number of devices change only their rounding.
"""

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from typing import Literal

from pmapdp import cli
from pmapdp.config import setting
from pmapdp.errors import UserError
from pmapdp.evaluate.evaluation import evaluate_file, evaluate_run


@dataclass(frozen=True)
class Options:
    """Loss and accuracy of a trained model over exactly the test set of its data."""

    model: str = setting(
        "arguments",
        dataclasses.MISSING,
        "Folder of a run, whose newest checkpoint is taken, or a file that python -m pmapdp.export wrote; such a file "
        "holds a program, so use only files of people whom you trust.",
        place="MODEL",
    )
    strategy: Literal["pmap", "jit", "shard_map", "single"] | None = setting(
        "options",
        None,
        "Who splits the batch and adds up; default: as in training. An exported model runs on one device.",
    )
    devices: int | None = setting("options", None, "Number of devices; default: as in training.")
    best: bool = setting("options", False, "Of a run: the checkpoint of its best epoch instead of the newest.")
    data_dir: str | None = setting(
        "options", None, "Folder of downloaded data sets; default: $PMAPDP_DATA, else a cache folder in your home."
    )
    json: bool = setting("options", False, "Print the result as one JSON object.")


def main(arguments: list[str]) -> None:
    """The command."""
    options = cli.parse(Options, arguments, __doc__)
    if not os.path.isfile(options.model):
        means, facts = evaluate_run(
            options.model,
            strategy=options.strategy,
            devices=options.devices,
            data_dir=options.data_dir,
            best=options.best,
        )
    elif options.best:
        raise UserError(f"{options.model} is an exported model, which has no other epochs: leave out --best")
    elif options.strategy is None and options.devices is None:
        means, facts = evaluate_file(options.model, options.data_dir)
    else:
        raise UserError(f"{options.model} is an exported model, for one device: leave out --strategy and --devices")
    if options.json:
        print(json.dumps({"test": means} | facts))
        return
    others = [f"{name} {value:.4f}" for name, value in means.items() if name not in ("loss", "examples")]
    print(" ".join([f"test loss {means['loss']:.6f}", *others]))
    print(f"{means['examples']:,} examples of {facts['dataset']}, after {facts['step']:,} updates")
    print(f"{facts['strategy']}, {facts['device_kind']}")


if __name__ == "__main__":
    sys.exit(cli.run(main))
