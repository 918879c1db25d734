"""Train with each strategy from the same seed, and measure what each does and holds."""

import itertools
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np

from pmapdp.compare.measure import (
    describe_arrays,
    in_new_process,
    largest_difference,
    make_measurement,
)
from pmapdp.compare.results import Measurement
from pmapdp.compare.words import ROUNDING
from pmapdp.compare.wrong_strategies import WRONG_STRATEGIES
from pmapdp.config import Config
from pmapdp.errors import DivergedError, UserError
from pmapdp.job import Job, make_job
from pmapdp.state import create_state
from pmapdp.steps import STRATEGIES
from pmapdp.steps.placing import fetch
from pmapdp.steps.shared import gradient_sums

MAKERS: dict[str, Any] = {**STRATEGIES, **WRONG_STRATEGIES}
# Updates are timed in groups, because a single one is too short. The first group
# compiles and warms up, so its time doesn't count.
GROUPS = 10


def compare_strategies(
    config: Config, names: Sequence[str], counts: Sequence[int | None]
) -> list[Measurement]:
    """Train on one device, and with each strategy on each number of devices.

    Each number of devices has a process of its own, so call it below
    `if __name__ == "__main__":`. All runs have one batch.

    Args:
        config: The settings of the training.
        names: The strategies, for example "pmap" and "jit".
        counts: The numbers of devices, the largest first. None: all devices.

    Returns:
        A measurement for each run. The first is of the single device.

    Example:
        if __name__ == "__main__":
            runs = compare_strategies(Config(epochs=1), ["pmap", "jit"], [8])
            for run in runs:
                print(run.strategy, run.largest_difference)
    """
    most, *fewer = counts
    results = in_new_process(run_strategies, replace(config, devices=most), names)
    # All runs have the batch of the first, and the wrong strategies run there only.
    size = results[0][0].global_batch_size
    config = replace(config, global_batch_size=size, per_device_batch_size=None)
    correct = [name for name in names if name not in WRONG_STRATEGIES]
    for count in fewer:
        few_devices = replace(config, devices=count)
        results += in_new_process(run_strategies, few_devices, correct)
    one_device = replace(config, devices=1)
    single = in_new_process(run_strategies, one_device, ["single"])
    _, reference = single[0]
    runs = []
    for run, parameters in single + results:
        run.largest_difference = largest_difference(parameters, reference)
        runs.append(run)
    return runs


def run_strategies(
    config: Config, names: Sequence[str]
) -> list[tuple[Measurement, Any]]:
    """Train with each strategy on the same devices.

    They make a group of updates in turn, so that all meet the same machine.

    Returns:
        Measurement and last parameters of each strategy.
    """
    with jax.enable_x64(config.dtype == "float64"):
        trainings = [Training(config, name) for name in names]
        show_progress(f"training, {trainings[0].job.total_steps} updates each")
        for group in range(GROUPS):
            for training in trainings:
                training.run_group(group)
        sums = sum_one_weights_gradients(trainings[0].job)
        results = []
        for training in trainings:
            parameters = fetch(training.state).params
            results.append((training.measure(sums), parameters))
        return results


def show_progress(text: str) -> None:
    """Print what happens, at once, also into a file."""
    print(text, file=sys.stderr, flush=True)


def sum_one_weights_gradients(job: Job) -> list[float]:
    """Return one weight's gradient sum over each device's part of the first batch.

    The weight is the one with the largest sum, in the smallest array.
    """
    N = len(job.devices)
    batch = next(job.batches["train"].epoch(0))
    parts = jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch)
    sum_gradients = jax.vmap(partial(gradient_sums, job.task, create_state(job.task)))
    gradients, _, _ = jax.jit(sum_gradients)(parts)
    smallest = min(jax.tree.leaves(gradients), key=lambda leaf: leaf.size)
    sums = np.reshape(smallest, (N, -1))
    return sums[:, np.argmax(np.abs(sums.sum(0)))].tolist()


class Training:
    """A run of one strategy that stops after every group of updates.

    Attributes:
        name: The strategy, correct or wrong.
        job: The parts of its training.
        strategy: Its functions. Their task notes which shapes the step sees.
        sees: These shapes, once the step is compiled.
        state: The state after the last update.
        batches: The batches of all epochs.
        program: The compiled step.
        holds: What the devices hold, by role.
        losses: The losses of all updates so far.
        milliseconds: The time of an update in each group so far.
    """

    def __init__(self, config: Config, name: Any):
        self.name = name
        if name in WRONG_STRATEGIES:
            self.job = make_job(replace(config, strategy="pmap"))  # which they change
            progress = f"compiling {name}, wrong on purpose"
        else:
            self.job = make_job(replace(config, strategy=name))
            progress = f"compiling {name} \u00d7 {len(self.job.devices)}"
        job = self.job
        if job.total_steps < GROUPS:
            raise UserError(
                f"--steps {job.total_steps} is too few to time, as a single update "
                "varies: try --steps 20"
            )
        show_progress(progress)

        # The step, which notes the shapes that it sees
        def loss(model: Any, batch: Any) -> Any:
            # Python runs this when JAX traces the step, so it sees the step's shapes.
            self.sees = list(jax.tree.leaves(batch.inputs)[0].shape)
            return job.task.loss(model, batch)

        task = replace(job.task, loss=loss)
        self.strategy: Any = MAKERS[name](task, job.devices)
        self.state: Any = self.strategy.place_state(create_state(job.task))

        # The batches, epoch after epoch without an end
        epochs = map(job.batches["train"].epoch, itertools.count())
        self.batches = itertools.chain.from_iterable(epochs)

        # What is measured, beginning with the compiled step
        batch = self.strategy.place_batch(next(job.batches["train"].epoch(0)))
        lowered = self.strategy.train_step.lower(self.state, batch)
        self.program = lowered.compile()  # which the calls of train_step use, too
        self.losses: list[float] = []
        self.milliseconds: list[float] = []
        self.holds = {
            "batch": describe_arrays(batch),
            "weights": describe_arrays(self.state.params),
            "optimizer": describe_arrays(self.state.optimizer_state),
        }

    def run_group(self, number: int) -> None:
        """Make some updates. Their time includes reading batches and placing them."""
        groups = np.array_split(np.arange(self.job.total_steps), GROUPS)
        updates = len(groups[number])
        group = []
        started = time.perf_counter()
        for batch in itertools.islice(self.batches, updates):
            placed = self.strategy.place_batch(batch)
            self.state, sums = self.strategy.train_step(self.state, placed)
            group.append(sums)
        jax.block_until_ready((self.state, group))
        self.milliseconds.append(1000 * (time.perf_counter() - started) / updates)
        for sums in fetch(group):
            loss = float(sums.loss) / float(sums.count)
            self.losses.append(loss)
            if not math.isfinite(loss) and self.name not in WRONG_STRATEGIES:
                raise DivergedError(
                    f"the loss is {loss} at step {len(self.losses)}: "
                    "try a lower --learning-rate"
                )

    def measure(self, gradient_sums: list[float]) -> Measurement:
        """Return what was measured, and what arrays and compiled program say."""
        run = make_measurement(
            self.name,
            devices=self.job.devices,
            global_batch_size=self.job.batches["train"].batch_size,
            milliseconds=self.milliseconds[1:],
            program=self.program,
            holds=self.holds,
        )
        run.sees = self.sees
        run.losses = self.losses
        run.gradient_sums = gradient_sums
        # A model of yours may keep float32 parameters, whatever --dtype says.
        dtypes = {str(leaf.dtype) for leaf in jax.tree.leaves(self.state.params)}
        dtypes.add(self.job.config.dtype)
        run.dtype = max(dtypes & ROUNDING.keys(), key=ROUNDING.__getitem__)
        return run
