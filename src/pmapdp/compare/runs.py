"""The runs of a comparison, one after the other, because they share the cores."""

import itertools
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from pmapdp.compare.collectives import collectives
from pmapdp.compare.table import Runs, run_name
from pmapdp.config import Config
from pmapdp.devices import describe
from pmapdp.errors import UserError
from pmapdp.job import Job, prepare
from pmapdp.metrics import Meter
from pmapdp.state import create_state
from pmapdp.steps import make_strategy
from pmapdp.verify import Layout, verify
from pmapdp.verify.trees import distance

LARGEST_GROUP = 20


def compare(plan: Sequence[Config], say: Callable[[str], None]) -> Runs:
    """The results of the runs of `plan`, whose first has the most devices and whose last is the reference. `say` takes
    a line about each that is done.

    Each gets the global batch that the first comes to on its devices.
    """
    runs: Runs = []
    parameters: list[Any] = []  # of each run, after the last update, on the host
    batch: dict[str, Any] = {}
    for config in plan:
        job = prepare(replace(config, **batch))
        batch = {"global_batch_size": job.global_batch_size, "per_device_batch_size": None}
        facts = {
            "strategy": config.strategy,
            "devices": len(job.devices),
            "global_batch_size": job.global_batch_size,
            "simulated": len(job.devices) > 1 and job.devices[0].platform == "cpu",
            "machine": f"{describe(job.devices)}, jax {jax.__version__}, Python {platform.python_version()}",
        }
        results, trained = measure(job)
        found = [] if config.strategy == "single" else causes(job)
        runs.append(facts | {"causes": found} | results)
        parameters.append(trained)
        say(f"run {len(runs)} of {len(plan)} is done: {run_name(runs[-1])}")
    for run, trained in zip(runs, parameters, strict=True):
        run["largest_difference"] = max(jax.tree.leaves(jax.tree.map(distance, trained, parameters[-1])))
    return runs


def causes(job: Job) -> list[str]:
    """What `pmapdp.verify` finds wrong with the strategy's step, beside that of one device on the same batch."""
    strategy = job.strategy
    report = verify(
        reference=make_strategy("single", job.task, job.devices[:1]).train_step,
        step=strategy.train_step,
        state=create_state(job.task),
        batch=next(job.train_batches.epoch(0)),
        layout=Layout(
            lambda state, devices: strategy.place_state(state), lambda batch, devices: strategy.place_batch(batch)
        ),
        devices=job.devices,
        float64=False,  # the run has the type that was asked for
    )
    return report.causes


def measure(job: Job) -> tuple[dict[str, Any], Any]:
    """Train; losses, times and collectives, and the last parameters.

    A step's time includes taking its batch on the host and placing it. The devices' work overlaps with that as in
    training: the host waits for all of it only at the end of a group of updates, which are timed together. The first
    group compiles and warms caches up, so it does not count.

    Raises:
        UserError: there are too few updates to time.
        DivergedError: the loss is not finite.
    """
    if job.total_steps < 2:
        raise UserError("a single update is too few to time: try --steps 100, with a smaller batch")
    strategy, meter = job.strategy, Meter()
    train_step: Any = strategy.train_step
    state = create_state(job.task, strategy.state_sharding)
    first = strategy.place_batch(next(job.train_batches.epoch(0)))
    program = train_step.lower(state, first).compile().as_text()  # the calls below find this program and use it
    epochs = (job.train_batches.epoch(number) for number in itertools.count())
    batches = itertools.islice(itertools.chain.from_iterable(epochs), job.total_steps)
    every_sums, groups = [], []
    size = min(LARGEST_GROUP, max(1, job.total_steps // 10))
    for step, batch in enumerate(batches, start=1):
        state, sums = train_step(state, strategy.place_batch(batch))
        every_sums.append(sums)
        meter.add(step, sums, batch.examples)
        if step % size == 0:
            meter.finish()
            groups.append((meter.step_ms, meter.examples_per_second))
            meter.restart_clock()
    meter.finish()
    milliseconds, rates = zip(*groups[1:], strict=True)
    low, median, high = np.percentile(milliseconds, (25, 50, 75)).tolist()
    return {
        "losses": [float(sums.loss) / float(sums.count) for sums in strategy.fetch(every_sums)],
        "step_ms": {"median": median, "low": low, "high": high},
        "examples_per_second": float(np.median(rates)),
        "collectives": [each._asdict() for each in collectives(program)],
    }, strategy.fetch(state.params)
