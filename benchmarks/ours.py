"""The trainer on the work of the bare loop and of the others' programs.

    python -m benchmarks.ours DATA.npz STRATEGY MODEL DEVICES GLOBAL_BATCH EXAMPLES EPOCHS

Prints one line of JSON an epoch: {"examples_per_second": ...}, behind what `python -m pmapdp.train` prints.
"""

import json
import sys
from typing import Any

import numpy as np

from benchmarks import work_parser
from pmapdp import cli
from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.files import open_file
from pmapdp.train import train


def main(arguments: list[str]) -> None:
    """The command."""
    options = work_parser(__doc__, "ours").parse_args(arguments)
    with open_file(options.data) as file, np.load(file) as data:
        images, labels = data["images"][: options.examples], data["labels"][: options.examples].astype(np.int32)
    examples = Split(images, labels)
    config = Config(
        model=options.model,
        strategy=options.strategy,
        devices=options.devices,
        global_batch_size=options.batch,
        epochs=options.epochs,
        learning_rate=1e-3,
        schedule="constant",
        label_smoothing=0.0,
        progress=False,
    )

    def say(results: dict[str, Any], _: Any) -> None:
        print(json.dumps({"examples_per_second": results["examples_per_second"]}), flush=True)

    test = Split(images[: options.batch], labels[: options.batch])
    train(config, data=DataSet(examples, test), after_epoch=say)


if __name__ == "__main__":
    sys.exit(cli.run(main))
