"""The trainer on the work of the bare loop and of the peers.

    python -m benchmarks.ours DATA.npz STRATEGY MODEL DEVICES GLOBAL_BATCH EXAMPLES
    EPOCHS

Prints one line of JSON an epoch, {"examples_per_second": ...}, after the lines that
`python -m pmapdp.train` prints.
"""

import json
import sys

from benchmarks import load_work, make_config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.train import train


def main() -> None:
    """Train, and print the speed of each epoch."""
    data, strategy, model, devices, batch, epochs = load_work(sys.argv[1:])
    test = Split(data.inputs[:batch], data.labels[:batch])
    config = make_config(strategy, devices, batch, epochs, model=model)
    for epoch in train(config, data=DataSet(data, test)).epochs:
        print(json.dumps({"examples_per_second": epoch["examples_per_second"]}))


if __name__ == "__main__":
    main()
