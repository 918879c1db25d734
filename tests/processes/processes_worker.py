"""One of several processes of `test_many_processes.py`, started by hand.

    python processes_worker.py DEVICES MODEL STRATEGIES OUTPUT COORDINATOR COUNT PROCESS

Trains five ragged batches in float64 under the strategies, and writes as JSON to OUTPUT/PROCESS which examples this
process has read and a digest of the parameters; process 0 also, how far they are from one device on whole batches.
"""

import hashlib
import json
import sys
from pathlib import Path

import jax
import numpy as np
import optax
from contract_worker import SEED, data
from examples import whole_batch

from pmapdp.config import Config
from pmapdp.data.batches import Batches
from pmapdp.devices import of_all_processes
from pmapdp.loss import MetricSums
from pmapdp.processes.join import joined
from pmapdp.processes.options import ProcessesOptions
from pmapdp.registry import MODELS
from pmapdp.state import Task, build, create_state
from pmapdp.steps import make_strategy
from pmapdp.steps.placing import over_all_processes

BATCH = 18  # 83 examples: four batches of 18 and one of 11, so that some devices get padding alone


class Reading:
    """An array that notes which rows are taken from it."""

    def __init__(self, array: np.ndarray):
        self.array, self.rows = array, []

    def __getitem__(self, rows):
        self.rows.append(rows.tolist())
        return self.array[rows]


def flat(tree) -> np.ndarray:
    """All numbers of a pytree in one array."""
    return np.concatenate([np.zeros(0), *(np.ravel(leaf) for leaf in jax.tree.leaves(tree))])


def run(steps, state, train_batches, test_batches) -> dict[str, np.ndarray]:
    """Train and evaluate; the numbers that must not depend on how the work is split."""
    losses = []
    for batch in train_batches:
        state, sums = steps.train_step(state, steps.place_batch(batch))
        losses.append(steps.fetch(sums).loss)
    tested = [MetricSums(*steps.fetch(steps.eval_step(state, steps.place_batch(batch)))) for batch in test_batches]
    state = steps.fetch(over_all_processes(state, steps.state_sharding))
    return {
        "params": flat(state.params),
        "model_state": flat(state.model_state),
        "train_loss": np.array(losses),
        "test_loss": np.sum([sums.loss for sums in tested]),
        "test_counts": np.sum([(sums.correct, sums.count) for sums in tested], axis=0),
    }


def main() -> None:
    local_count, model, strategies, output, coordinator, count, process = sys.argv[1:]
    jax.config.update("jax_enable_x64", True)
    options = ProcessesOptions(coordinator=coordinator, num_processes=int(count), process_id=int(process))
    with joined(options, Config(devices=int(local_count))) as peers:
        local = jax.local_devices()
        devices = of_all_processes(local)
        N, first = len(devices), devices.index(local[0])
        here = range(first, first + len(local))
        train, test = data(model)
        task = Task(build(MODELS[model], SEED, dtype="float64"), optax.adam(1e-3), seed=SEED, dtype="float64")
        order = Batches(train, BATCH, shuffle_seed=SEED).order(0)
        alone = make_strategy("single", task, local[:1])
        wanted = peers.first and run(
            alone,
            alone.place_state(create_state(task)),
            [whole_batch(train, order[start : start + BATCH]) for start in range(0, len(order), BATCH)],
            [whole_batch(test, np.arange(len(test.labels)))],
        )
        # Where processes meet in a program for the first time, they wait no longer than 30 seconds for each other.
        peers.wait("one device")
        differences, content, reading = {}, {}, Reading(train.inputs)
        for strategy in strategies.split(","):
            reading.rows = []
            steps = make_strategy(strategy, task, devices)
            found = run(
                steps,
                create_state(task, steps.state_sharding),
                Batches(train._replace(inputs=reading), BATCH, devices=N, here=here, shuffle_seed=SEED).epoch(0),
                Batches(test, 2 * N + 1, devices=N, here=here).epoch(0),
            )
            if wanted:
                apart = {name: np.abs(found[name] - wanted[name]).max(initial=0) for name in wanted}
                differences[strategy] = {name: float(difference) for name, difference in apart.items()}
            content[strategy] = hashlib.sha256(found["params"].tobytes()).hexdigest()
        report = {"differences": differences, "devices": N, "rows": reading.rows, "params": content}
        (Path(output) / str(peers.process)).write_text(json.dumps(report))


if __name__ == "__main__":
    main()
