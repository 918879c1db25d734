"""The ways to run a step of ours, one after the other, each in a process of its own."""

import itertools
import math
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from pmapdp.compare import stacked
from pmapdp.compare.apart import apart
from pmapdp.compare.collectives import instructions
from pmapdp.compare.held import held, memory
from pmapdp.config import Config
from pmapdp.devices import describe
from pmapdp.errors import DivergedError, UserError
from pmapdp.state import create_state
from pmapdp.steps import single
from pmapdp.train import Job, prepare
from pmapdp.verify import Layout, verify
from pmapdp.verify.trees import distance

LARGEST_GROUP = 20
STACKED = "pmap, stacked"
Runs = list[dict[str, Any]]


def compare(plan: Sequence[tuple[str, Config]], say: Callable[[str], None]) -> Runs:
    """The results of the ways of `plan`, by name and configuration. The first is a single device, to which the others
    are compared; the second has the most devices, and all get its global batch. `say` takes a line about each.
    """
    found: dict[int, tuple[dict[str, Any], Any]] = {}
    batch: dict[str, Any] = {}
    for done, place in enumerate([*range(1, len(plan)), 0], start=1):
        way, config = plan[place]
        found[place] = apart(run_way, way, replace(config, **batch))
        run = found[place][0]
        batch = {"global_batch_size": run["global_batch_size"], "per_device_batch_size": None}
        say(f"run {done} of {len(plan)} is done: {run['name']}")
    single = found[0][1]
    for run, trained in found.values():
        run["largest_difference"] = max(jax.tree.leaves(jax.tree.map(distance, trained, single)))
    return [found[place][0] for place in range(len(plan))]


def run_way(way: str, config: Config) -> tuple[dict[str, Any], Any]:
    """One way: what it is, what it holds, compiles and takes, and its last parameters on the host."""
    with jax.enable_x64(config.dtype == "float64"):
        job = prepare(config)
        if way == STACKED:
            job = replace(job, strategy=stacked.make_strategy(job.task, job.devices))
        name = way if config.strategy == "single" else f"{way} \u00d7 {len(job.devices)}"
        known = facts(way, name, job.devices, job.batches["train"].batch_size)
        results, trained = measure(job)
        return known | results | {"causes": [] if way == "single" else causes(job)}, trained


def facts(way: str, name: str, devices: Sequence[jax.Device], examples: int) -> dict[str, Any]:
    """What is known of a run before it starts."""
    return {
        "strategy": way,
        "name": name,
        "devices": len(devices),
        "global_batch_size": examples,
        "simulated": len(devices) > 1 and devices[0].platform == "cpu",
        "machine": f"{describe(list(devices))}, jax {jax.__version__}, Python {platform.python_version()}",
    }


def spread(milliseconds: Sequence[float]) -> dict[str, float]:
    """The median, and from where to where the middle half lies."""
    return dict(zip(("low", "median", "high"), np.percentile(milliseconds, (25, 50, 75)).tolist(), strict=True))


def causes(job: Job) -> list[str]:
    """What `pmapdp.verify` finds wrong with the strategy's step, beside that of one device on the same batch."""
    strategy = job.strategy
    report = verify(
        reference=single.make_strategy(job.task, job.devices[:1]).train_step,
        step=strategy.train_step,
        state=create_state(job.task),
        batch=next(job.batches["train"].epoch(0)),
        layout=Layout(
            lambda state, devices: strategy.place_state(state), lambda batch, devices: strategy.place_batch(batch)
        ),
        devices=job.devices,
        float64=False,  # the run has the type that was asked for
    )
    return report.causes


def measure(job: Job) -> tuple[dict[str, Any], Any]:
    """Train; losses, times, collectives, memory and what the devices hold, and the last parameters.

    A step's time includes taking its batch on the host and placing it. The devices' work overlaps with that as in
    training: the host waits for all of it only at the end of a group of updates, which are timed together. The first
    group compiles and warms caches up, so it does not count.

    Raises:
        UserError: there are too few updates to time.
        DivergedError: the loss is not finite.
    """
    if job.total_steps < 2:
        raise UserError("a single update is too few to time: try --steps 100, with a smaller batch")
    strategy = job.strategy
    train_step: Any = strategy.train_step
    state = strategy.place_state(create_state(job.task))
    first = strategy.place_batch(next(job.batches["train"].epoch(0)))
    program = train_step.lower(state, first).compile()  # the calls below find this program and use it
    epochs = (job.batches["train"].epoch(number) for number in itertools.count())
    batches = itertools.islice(itertools.chain.from_iterable(epochs), job.total_steps)
    size = min(LARGEST_GROUP, max(1, job.total_steps // 10))
    losses, milliseconds, rates = [], [], []
    for _ in range(0, job.total_steps, size):
        started, examples, every_sums = time.perf_counter(), 0, []
        for batch in itertools.islice(batches, size):
            state, sums = train_step(state, strategy.place_batch(batch))
            every_sums.append(sums)
            examples += int((batch.weights > 0).sum())
        jax.block_until_ready((state, every_sums))
        seconds = time.perf_counter() - started
        milliseconds.append(1000 * seconds / len(every_sums))
        rates.append(examples / seconds)
        for here in strategy.fetch(every_sums):
            losses.append(float(here.loss) / float(here.count))
            if not math.isfinite(losses[-1]):
                raise DivergedError(f"the loss is {losses[-1]} at step {len(losses)}: try a lower --learning-rate")
    saved = strategy.fetch(state)
    return {
        "losses": losses,
        "step_ms": spread(milliseconds[1:]),
        "examples_per_second": float(np.median(rates[1:])),
        "collectives": instructions(program.as_text()),
        "memory": memory(program.memory_analysis()),
        "held": {"state": held(state), "batch": held(first), "metric": held(sums.loss), "saved": held(saved)},
    }, saved.params
