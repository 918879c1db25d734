"""What it is worth that an accumulation has no loop on CPUs: `python -m benchmarks.accumulation [--rounds 5]`.

An update of cnn and of convnet on one device with four micro-batches of 16, unrolled as the trainer computes it on
CPUs, and with the loop that accelerators run, in turn in one process. Prints a line of JSON for each model with the
milliseconds of an update, medians over the rounds.
"""

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
from jax import lax

from benchmarks import at_least_one, make_parser
from pmapdp import cli
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split
from pmapdp.registry import MODELS
from pmapdp.state import Task, build, create_state
from pmapdp.steps import single

UPDATES = 5  # in a row, of which the mean counts


@contextlib.contextmanager
def loops_stay() -> Iterator[None]:
    """Whatever is traced meanwhile has its scans as loops, also where it asks for them to be unrolled."""
    scan = lax.scan
    lax.scan = lambda *arguments, unroll=1, **options: scan(*arguments, **options)
    try:
        yield
    finally:
        lax.scan = scan


class Trained:
    """A model that is trained on one batch again and again; the first update is made, and so compiled."""

    def __init__(self, model: str):
        random = np.random.default_rng(0)
        split = Split(random.integers(0, 256, (64, 28, 28, 1), np.uint8), random.integers(0, 10, 64, np.int32))
        task = Task(build(MODELS[model]), optax.adam(1e-3), accumulate=4)
        self.strategy = single.make_strategy(task, jax.devices())
        self.batch = self.strategy.place_batch(next(Batches(split, 64, accumulate=4).epoch(0)))
        self.state: Any = self.strategy.place_state(create_state(task))
        self.milliseconds()

    def milliseconds(self) -> float:
        """Of an update."""
        clock = time.perf_counter()
        for _ in range(UPDATES):
            self.state, _ = self.strategy.train_step(self.state, self.batch)
        jax.block_until_ready(self.state)
        return (time.perf_counter() - clock) / UPDATES * 1000


def main(arguments: list[str]) -> None:
    """The command."""
    parser = make_parser(__doc__, "accumulation", "--rounds 5")
    parser.add_argument("--rounds", type=at_least_one, default=5, help="turns of each kind")
    options = parser.parse_args(arguments)
    for model in ("cnn", "convnet"):
        kinds = {"unrolled": Trained(model)}
        with loops_stay():
            kinds["loop"] = Trained(model)
        times: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(options.rounds):
            for kind, trained in kinds.items():
                times[kind].append(trained.milliseconds())
        medians = {kind: round(statistics.median(values), 3) for kind, values in times.items()}
        print(json.dumps({"model": model, **medians}), flush=True)


if __name__ == "__main__":
    sys.exit(cli.run(main))
