"""Contract 1 on some numbers of devices: a process of `test_contracts.py`.

    python contract_worker.py 1,2,3 mlp,cnn      # prints {case: {strategy: what was found}} as JSON
    python contract_worker.py 1 transformer all  # the cases of all counts on each

Five updates on 83 examples with a global batch of 18 that few counts divide; the last holds 11, so that with 8 devices
some of them get padding alone. Before each update its batch is evaluated. The reference is one device, a CPU also where
there are accelerators, on the unpadded batch; what every device holds is compared with it after each update.
"""

import functools
import json
import sys
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from examples import random_split_for, whole_batch

from pmapdp import steps
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import Split
from pmapdp.devices import choose
from pmapdp.job import make_strategy
from pmapdp.loss import MetricSums
from pmapdp.registry import MODELS
from pmapdp.sharding.layout import data_parallel
from pmapdp.state import Task, TrainState, build, create_state
from pmapdp.steps.shared import Strategy

BATCH, SEED = 18, 3
# Largest absolute difference of any number after any of the updates. The loss sums (about 40 a batch) and the running
# statistics in float32 carry a few units in the last place of float32. Counts are whole numbers.
TOLERANCES = {"float64": {"state": 1e-10, "loss": 1e-10}, "float32": {"state": 1e-6, "loss": 1e-4}}
OPTIMIZERS = {"adam": lambda: optax.adam(1e-3), "sgd": lambda: optax.sgd(0.1)}


class Case(NamedTuple):
    """What is trained, and on which device counts (all where empty)."""

    model: str
    optimizer: str = "adam"
    dtype: str = "float64"
    accumulate: int = 1
    counts: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model} {self.optimizer} {self.dtype} K={self.accumulate}"

    def task(self, accumulate: int) -> Task:
        model = build(MODELS[self.model], SEED, self.dtype)
        return Task(model, OPTIMIZERS[self.optimizer](), SEED, self.dtype, accumulate=accumulate)

    @property
    def of_reference(self) -> int:
        """Micro-batches of the reference. Accumulation must change nothing where there is no batch norm."""
        return self.accumulate if self.model == "convnet" else 1


CASES = (
    Case("mlp"),
    Case("cnn"),
    Case("convnet"),
    Case("text_mlp", counts=(3,)),
    Case("transformer", counts=(4,)),
    Case("speedrun", counts=(5, 7)),
    Case("mlp", accumulate=2, counts=(1, 4)),
    Case("mlp", accumulate=3, counts=(5,)),
    Case("cnn", accumulate=2, counts=(3,)),
    Case("cnn", accumulate=3, counts=(4,)),
    Case("mlp", "sgd", counts=(1, 2)),
    Case("convnet", "sgd", counts=(2,)),
    Case("convnet", "sgd", accumulate=2, counts=(3,)),
    Case("mlp", "sgd", "float32", counts=(3, 7)),
    Case("cnn", "sgd", "float32", counts=(7,)),
    Case("convnet", "sgd", "float32", counts=(4,)),
)


@functools.cache
def first_state(model: str, optimizer: str, dtype: str) -> TrainState:
    """The state before training, compiled once for all strategies and accumulation steps."""
    return create_state(Case(model, optimizer, dtype).task(accumulate=1))


@functools.cache
def data(model: str) -> tuple[Split, Split]:
    """The examples to train and to test, as `model` takes them."""
    return random_split_for(model, 83, seed=1), random_split_for(model, 29, seed=2)


class OneDevice(NamedTuple):
    """The reference of a case: its functions, the state in which it starts, and its batches."""

    steps: Strategy
    state: TrainState
    batches: list[Batch]


@functools.cache
def one_device(model: str, optimizer: str, dtype: str, accumulate: int) -> OneDevice:
    """Compiled once for all strategies. Its batches have no padding, but for that of micro-batches."""
    train, _ = data(model)
    batches = Batches(train, BATCH, accumulate=accumulate, shuffle_seed=SEED)
    order = batches.order(0)
    parts = [order[step * BATCH : (step + 1) * BATCH] for step in range(batches.per_epoch)]
    return OneDevice(
        steps.make_strategy("single", Case(model, optimizer, dtype).task(accumulate), jax.devices("cpu")[:1]),
        first_state(model, optimizer, dtype),
        [whole_batch(train, part) if accumulate == 1 else batches.take(part) for part in parts],
    )


class Outcome(NamedTuple):
    """After an update, on the host."""

    state: TrainState
    trained: MetricSums
    evaluated: MetricSums | None  # before it; accumulation does not concern evaluation


@functools.cache
def wanted(case: Case) -> list[Outcome]:
    """What one device gives after each batch."""
    one, outcomes = one_device(case.model, case.optimizer, case.dtype, case.of_reference), []
    state = one.steps.place_state(one.state)
    for batch in map(one.steps.place_batch, one.batches):
        evaluated = one.steps.eval_step(state, batch) if case.accumulate == 1 else None
        state, trained = one.steps.train_step(state, batch)
        outcomes.append(jax.device_get(Outcome(state, trained, evaluated)))
    return outcomes


def faults(case: Case, strategy: str, devices: Sequence[jax.Device]) -> list[str]:
    """Every number that a device holds after an update and that differs from one device's by more than is allowed."""
    one, (train, _) = one_device(case.model, case.optimizer, case.dtype, case.of_reference), data(case.model)
    batches = Batches(train, BATCH, devices=len(devices), accumulate=case.accumulate)
    made = make_strategy(strategy, case.task(case.accumulate), devices, data_parallel(devices))
    state, found = made.place_state(one.state), []
    for number, (batch, right) in enumerate(zip(one.batches, wanted(case), strict=True)):
        rows = made.place_batch(batches.take(batch.indices[batch.weights > 0]))
        evaluated = made.eval_step(state, rows) if case.accumulate == 1 else None
        state, trained = made.train_step(state, rows)
        got = jax.tree_util.tree_leaves_with_path(Outcome(state, trained, evaluated))
        for (path, leaf), expected in zip(got, jax.tree.leaves(right), strict=True):
            assert len(leaf.addressable_shards) == len(devices)
            limit = TOLERANCES[case.dtype].get(path[-1].name if path[0].name != "state" else "state", 0.0)
            limit = limit if jnp.issubdtype(leaf.dtype, jnp.floating) else 0.0
            for shard in leaf.addressable_shards:
                difference = np.max(np.abs(np.asarray(shard.data, expected.dtype) - expected), initial=0)
                if not (shard.data.shape == expected.shape and difference <= limit):
                    where = f"update {number + 1}{jax.tree_util.keystr(path)} on {shard.device}"
                    found.append(f"{where} differs by {difference:.2g}, over {limit:.2g}")
    return found


def main() -> None:
    counts = [int(count) for count in sys.argv[1].split(",")]
    jax.config.update("jax_enable_x64", True)
    devices = choose(max(counts))
    found: dict[str, dict[str, list[str]]] = {}
    for case in CASES:
        here = [count for count in counts if sys.argv[3:] == ["all"] or not case.counts or count in case.counts]
        if not here or case.model not in sys.argv[2].split(","):
            continue
        runs = dict.fromkeys(("pmap", "jit", "shard_map"), here) | ({"single": [1]} if 1 in here else {})
        found[case.name] = {
            strategy: [fault for count in on for fault in faults(case, strategy, devices[:count])]
            for strategy, on in runs.items()
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
