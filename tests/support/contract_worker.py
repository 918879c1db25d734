"""One device count of `test_contracts.py`, in a process of its own.

    python contract_worker.py reference FOLDER     # writes what every count is compared with
    python contract_worker.py N FOLDER [seam]      # prints {case: {strategy: {quantity: largest difference}}} as JSON

With `seam` the steps are those that simulated devices run (pmapdp/cpu), without it those of accelerators.

Five updates on 83 examples with a global batch of 18 that few counts divide; the last holds 11, so that with 8 devices
some of them get padding alone. Then an evaluation of 29 examples.
"""

import dataclasses
import functools
import json
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import numpy_mlp
import optax
import plain_convnet
from examples import random_split_for, whole_batch

from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split
from pmapdp.devices import choose
from pmapdp.registry import MODELS
from pmapdp.sharding.split_step import make_steps
from pmapdp.state import Task, TrainState, create_state
from pmapdp.steps.shared import Steps

BATCH, SEED = 18, 3
# Largest absolute difference after five updates. The loss sums (about 40 a batch, 70 in the test) and the
# running statistics in float32 carry a few units in the last place of float32.
TOLERANCES = {
    "float64": dict.fromkeys(("params", "batch_stats", "train_loss", "test_loss"), 1e-10),
    "float32": {"params": 1e-6, "batch_stats": 1e-6, "train_loss": 1e-4, "test_loss": 1e-4},
}
COUNTED = {"train_counts", "test_counts"}  # examples and right answers are whole numbers
OPTIMIZERS = {"adam": lambda: optax.adam(1e-3), "sgd": lambda: optax.sgd(0.1)}


class Case(NamedTuple):
    """What is trained, on which device counts (all where empty), and by what it is judged."""

    model: str
    optimizer: str = "adam"
    dtype: str = "float64"
    accumulate: int = 1
    reference: str = "single"  # one device on the whole batch; or numpy, plain: programs that share no code with ours
    counts: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model} {self.optimizer} {self.dtype} K={self.accumulate}"

    @property
    def reference_name(self) -> str:
        """Accumulation must change nothing where there is no batch norm: the same reference."""
        return self.name if self.model == "convnet" else self._replace(accumulate=1).name

    def task(self, accumulate: int) -> Task:
        return Task(
            MODELS[self.model], OPTIMIZERS[self.optimizer](), seed=SEED, dtype=self.dtype, accumulate=accumulate
        )


def steps_of(strategy: str, task: Task, devices, seam: bool) -> Steps:
    """The functions of a strategy, for accelerators or as the seam makes them."""
    if not seam:
        return make_steps(strategy, task, devices)
    from pmapdp.cpu.convolution import faster  # here, because a test deletes them
    from pmapdp.cpu.joined import join_collectives

    steps = make_steps(strategy, dataclasses.replace(task, transform=faster), devices)
    return steps._replace(train_step=jax.jit(join_collectives(steps.train_step), donate_argnums=0))


CASES = (
    Case("mlp"),
    Case("cnn"),
    Case("convnet"),
    Case("text_mlp", counts=(3,)),
    Case("transformer", counts=(4,)),
    Case("mlp", accumulate=2, counts=(1, 4)),
    Case("mlp", accumulate=3, counts=(8,)),
    Case("cnn", accumulate=2, counts=(3,)),
    Case("cnn", accumulate=3, counts=(4,)),
    Case("mlp", "sgd", reference="numpy", counts=(1, 8)),
    Case("convnet", "sgd", reference="plain", counts=(8,)),
    Case("convnet", "sgd", accumulate=2, reference="plain", counts=(3,)),
    Case("mlp", "sgd", "float32", counts=(3, 8)),
    Case("cnn", "sgd", "float32", counts=(8,)),
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


def epoch_order(train: Split) -> list[np.ndarray]:
    """The indices of each global batch of the first epoch, without padding."""
    order = Batches(train, BATCH, shuffle_seed=SEED).order(0)
    return [order[start : start + BATCH] for start in range(0, len(order), BATCH)]


def run(steps, state: TrainState, train_batches, test_batches) -> dict[str, np.ndarray]:
    """Train, and evaluate where there are test batches; everything that two runs must have in common."""
    placed, totals = steps.place_state(state), []
    for batch in train_batches:
        placed, sums = steps.train_step(placed, steps.place_batch(batch))
        totals.append(steps.fetch(sums))
    evaluated = [steps.fetch(steps.eval_step(placed, steps.place_batch(batch))) for batch in test_batches]
    trained = steps.fetch(placed)
    found = {
        "params": flat(trained.params),
        "batch_stats": flat(trained.batch_stats),
        "train_loss": np.array([sums.loss for sums in totals]),
        "train_counts": np.array([(sums.correct, sums.count) for sums in totals]),
    }
    if evaluated:
        found["test_loss"] = np.array([sum(sums.loss for sums in evaluated)])
        found["test_counts"] = np.sum([(sums.correct, sums.count) for sums in evaluated], axis=0)
    return found


def flat(tree) -> np.ndarray:
    """All numbers of a pytree in one array."""
    return np.concatenate([np.zeros(0), *(np.ravel(leaf) for leaf in jax.tree.leaves(tree))])


def reference(case: Case) -> dict[str, np.ndarray]:
    """What every strategy must come to."""
    train, test = data(case.model)
    orders = epoch_order(train)
    state = first_state(case.model, case.optimizer, case.dtype)
    if case.reference == "numpy":
        batches = [(train.inputs[order], train.labels[order]) for order in orders]
        return {"params": flat(numpy_mlp.train(state.params, batches, learning_rate=0.1))}
    if case.reference == "plain":
        size = -(-BATCH // case.accumulate)
        batches = [
            [
                (train.inputs[part], train.labels[part], part)
                for part in (order[start : start + size] for start in range(0, len(order), size))
            ]
            for order in orders
        ]
        params, batch_stats = plain_convnet.train(
            state.params, state.batch_stats, batches, learning_rate=0.1, seed=SEED
        )
        return {"params": flat(params), "batch_stats": flat(batch_stats)}
    steps = make_steps("single", case.task(accumulate=1), jax.devices()[:1])
    train_batches = [whole_batch(train, order) for order in orders]
    return run(steps, state, train_batches, [whole_batch(test, np.arange(len(test.labels)))])


def differences(case: Case, strategy: str, devices, seam: bool, wanted: dict[str, np.ndarray]) -> dict[str, float]:
    """The largest absolute difference of each quantity of the reference."""
    N, task = len(devices), case.task(case.accumulate)
    train, test = data(case.model)
    train_batches = Batches(train, BATCH, devices=N, accumulate=case.accumulate, shuffle_seed=SEED).epoch(0)
    evaluates = case.accumulate == 1 and "test_loss" in wanted  # accumulation does not concern evaluation
    test_batches = Batches(test, 2 * N + 1, devices=N).epoch(0) if evaluates else ()
    state = first_state(case.model, case.optimizer, case.dtype)
    found = run(steps_of(strategy, task, devices, seam), state, train_batches, test_batches)
    return {
        name: float(np.abs(found[name] - value).max(initial=0)) if found[name].shape == value.shape else np.inf
        for name, value in wanted.items()
        if evaluates or not name.startswith("test_")
    }


def too_far(report) -> list[str]:
    """The differences of a report that are larger than their tolerance."""
    found = []
    for case, strategies in report.items():
        tolerances = TOLERANCES["float32" if "float32" in case else "float64"]
        for strategy, quantities in strategies.items():
            for quantity, difference in quantities.items():
                limit = 0 if quantity in COUNTED else tolerances[quantity]
                if not difference <= limit:  # a NaN fails too
                    found.append(f"{case}, {strategy}: {quantity} differ by {difference:.2g}, over {limit:.2g}")
    return found


def main() -> None:
    folder = Path(sys.argv[2])
    jax.config.update("jax_enable_x64", True)
    if sys.argv[1] == "reference":
        for case in {case.reference_name: case for case in CASES}.values():
            np.savez(folder / f"{case.reference_name}.npz", **reference(case))
        return
    N = int(sys.argv[1])
    devices = choose(N)
    strategies = ("pmap", "jit", "shard_map") if N > 1 else ("pmap", "jit", "shard_map", "single")
    report = {}
    for case in CASES:
        if not case.counts or N in case.counts:
            with np.load(folder / f"{case.reference_name}.npz") as wanted:
                arrays = dict(wanted)
            seam = "seam" in sys.argv
            report[case.name] = {each: differences(case, each, devices, seam, arrays) for each in strategies}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
