"""The trainer on the work of the bare loop and of the peers.

    python -m benchmarks.ours DATA.npz STRATEGY MODEL DEVICES GLOBAL_BATCH EXAMPLES EPOCHS

Prints one line of JSON an epoch: {"examples_per_second": ...}, among the lines that `python -m pmapdp.train` prints.
"""

import json
import sys
from typing import Any

from benchmarks import load_work, make_config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.train import train


def print_speed(results: dict[str, Any], _: Any) -> None:
    """Print the speed of an epoch."""
    print(json.dumps({"examples_per_second": results["examples_per_second"]}), flush=True)


def main() -> None:
    """Run the command."""
    data, strategy, model, devices, batch, epochs = load_work(sys.argv[1:])
    test = Split(data.inputs[:batch], data.labels[:batch])
    config = make_config(strategy, devices, batch, epochs, model=model)
    train(config, data=DataSet(data, test), after_epoch=print_speed)


if __name__ == "__main__":
    main()
