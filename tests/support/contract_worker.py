"""Contract 1 by `pmapdp.verify`, on some numbers of devices: a process of `test_contracts.py`.

    python contract_worker.py 1,2,3 mlp,cnn      # prints {case: {strategy: what was found}} as JSON


Five updates on 83 examples with a global batch of 18 that few counts divide; the last holds 11, so that with 8 devices
some of them get padding alone. Before each update its batch is evaluated. The reference is one device on the
unpadded batch.
"""

import functools
import json
import sys
from typing import NamedTuple

import jax
import optax
from examples import random_split_for, whole_batch

from pmapdp import steps
from pmapdp.data.batches import Batch, Batches
from pmapdp.data.dataset import Split
from pmapdp.devices import choose
from pmapdp.job import make_strategy
from pmapdp.registry import MODELS
from pmapdp.sharding.layout import data_parallel
from pmapdp.state import Task, TrainState, build, create_state
from pmapdp.steps.shared import Strategy
from pmapdp.verify import Layout, Report, verify

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
        steps.make_strategy("single", Case(model, optimizer, dtype).task(accumulate), jax.devices()[:1]),
        first_state(model, optimizer, dtype),
        [whole_batch(train, part) if accumulate == 1 else batches.take(part) for part in parts],
    )


def with_evaluation(steps: Strategy, evaluates: bool):
    """A training step that first evaluates its batch; accumulation does not concern evaluation."""
    if not evaluates:
        return steps.train_step

    def step(state, batch):
        evaluated = steps.eval_step(state, batch)
        state, trained = steps.train_step(state, batch)
        return state, {"train": trained, "test": evaluated}

    step.lower = steps.train_step.lower  # what `verify` compiles apart
    return step


def verified(case: Case, strategy: str, devices, counts: list[int]) -> Report:
    """What `verify` finds on a strategy, on these numbers of devices."""
    one, K = one_device(case.model, case.optimizer, case.dtype, case.of_reference), case.accumulate
    train, _ = data(case.model)
    made = functools.cache(lambda N: make_strategy(strategy, case.task(K), devices[:N], data_parallel(devices[:N])))

    def place_batch(batch: Batch, devices):
        """Its examples, laid out for N devices as in training."""
        rows = Batches(train, BATCH, devices=len(devices), accumulate=K).take(batch.indices[batch.weights > 0])
        return made(len(devices)).place_batch(rows)

    return verify(
        reference=with_evaluation(one.steps, K == 1),
        make_step=lambda devices: with_evaluation(made(len(devices)), K == 1),
        state=one.state,
        batch=one.batches.__getitem__,
        updates=len(one.batches),
        layout=Layout(lambda state, devices: made(len(devices)).place_state(state), place_batch),
        devices=devices,
        counts=counts,
        float64=False,  # each case has the type that it is to have
    )


def faults_of(report: Report, counts: list[int], limits: dict[str, float]) -> list[str]:
    """Failed checks, and differences that rounding would explain but the contract does not allow."""
    faults = [str(check) for check in report.failed]
    for name in ("same update", "same metrics"):
        passed = [check for check in report.checks if check.name == name and check.status == "passed"]
        if [list(check.devices) for check in passed] != [counts]:
            faults.append(f"{name} was not checked on each of {counts} devices")
        for leaf, (difference, _) in passed[0].leaves.items() if passed else ():
            limit = limits["state"] if name == "same update" else limits.get(leaf.rpartition("/")[2], 0.0)
            if not difference <= limit:
                faults.append(f"{leaf} differs by {difference:.2g}, over {limit:.2g}")
    return faults


def main() -> None:
    counts = [int(count) for count in sys.argv[1].split(",")]
    jax.config.update("jax_enable_x64", True)
    devices = choose(max(counts))
    found: dict[str, dict[str, list[str]]] = {}
    for case in CASES:
        here = [count for count in counts if not case.counts or count in case.counts]
        if not here or case.model not in sys.argv[2].split(","):
            continue
        runs = dict.fromkeys(("pmap", "jit", "shard_map"), here) | ({"single": [1]} if 1 in here else {})
        found[case.name] = {
            strategy: faults_of(verified(case, strategy, devices, on), sorted(on), TOLERANCES[case.dtype])
            for strategy, on in runs.items()
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
