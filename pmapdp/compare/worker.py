"""A process of the comparison: `python -m pmapdp.compare.worker CONFIG [look]`. Not meant to be started by hand.

CONFIG is JSON. Writes an .npz file to stdout: `result`, which is JSON, and the parameters after training; with `look`,
only what the job is, without training.
"""

import contextlib
import itertools
import json
import platform
import sys
import time
from typing import Any

import jax
import numpy as np

from pmapdp.collectives import collectives
from pmapdp.config import Config
from pmapdp.devices import describe
from pmapdp.errors import DivergedError, UserError, run_command
from pmapdp.job import Job, prepare
from pmapdp.malloc import keep_freed_memory
from pmapdp.sharding.layout import bytes_on_a_device
from pmapdp.state import create_state
from pmapdp.verify.trees import values
from pmapdp.workers import end_with_starter

LARGEST_GROUP = 20


def look(job: Job) -> dict[str, Any]:
    """What the job comes to on this machine.

    Raises:
        UserError: it has too few updates to measure.
    """
    if job.total_steps < 3:  # the first compiles, and the second warms caches up
        raise UserError(f"{job.total_steps} updates are too few to time: try --steps 100, with a smaller batch")
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}, jax {jax.__version__}"
    return {
        "devices": len(job.devices),
        "global_batch_size": job.global_batch_size,
        "steps": job.total_steps,
        "training_examples": len(job.data.train.labels),
        "simulated": len(job.devices) > 1 and job.devices[0].platform == "cpu",
        "machine": f"{describe(job.devices)}, {system}",
    }


def measure(job: Job) -> tuple[dict[str, Any], Any]:
    """Train; losses, times, memory and collectives, and the last parameters.

    The host prepares the next step while the devices compute, and waits once for each group of steps. Waiting after
    each would forbid that, and measure something that no training run does.

    Raises:
        DivergedError: the loss is not finite.
    """
    steps = job.steps
    state = create_state(job.task, steps.state_sharding)
    epochs = (job.train_batches.epoch(number) for number in itertools.count())
    batches = itertools.islice(itertools.chain.from_iterable(epochs), job.total_steps)
    placed = steps.place_batch(next(batches))

    train_step: Any = steps.train_step
    clock = time.perf_counter()
    compiled = train_step.lower(state, placed).compile()  # the calls below find and use this program
    compile_seconds = time.perf_counter() - clock
    state, sums = jax.block_until_ready(train_step(state, placed))

    groups: list[tuple[float, int, int]] = []  # seconds, updates, examples
    every_sums = [steps.fetch(sums)]
    size = min(LARGEST_GROUP, max(1, job.total_steps // 10))
    while group := list(itertools.islice(batches, size)):
        clock, group_sums = time.perf_counter(), []
        for batch in group:
            state, sums = train_step(state, steps.place_batch(batch))
            group_sums.append(sums)
        jax.block_until_ready(state)
        groups.append((time.perf_counter() - clock, len(group), sum(batch.examples for batch in group)))
        every_sums += steps.fetch(group_sums)
    losses = [float(sums.loss) / float(sums.count) for sums in every_sums]
    for number, loss in enumerate(losses, start=1):
        if not np.isfinite(loss):
            raise DivergedError(f"the loss is {loss} at update {number}: try a lower --learning-rate")

    return {
        "losses": losses,
        "final_loss": losses[-1],
        "compile_seconds": compile_seconds,
        **speed(groups[1:]),  # the first group warms caches up
        "parameter_bytes": bytes_on_a_device(state.params),
        "optimizer_bytes": bytes_on_a_device(state.optimizer_state),
        "collectives": [each._asdict() for each in collectives(compiled.as_text())],
    }, steps.fetch(state.params)


def speed(groups: list[tuple[float, int, int]]) -> dict[str, Any]:
    """Milliseconds a step (median and the quartiles around it) and examples/s, from (seconds, updates, examples)."""
    low, median, high = np.percentile([1000 * seconds / steps for seconds, steps, _ in groups], (25, 50, 75)).tolist()
    return {
        "step_ms": {"median": median, "low": low, "high": high},
        "examples_per_second": float(np.median([examples / seconds for seconds, _, examples in groups])),
    }


def main(arguments: list[str]) -> None:
    """The command."""
    end_with_starter()
    keep_freed_memory()
    jax.config.update("jax_enable_compilation_cache", False)  # a program read from a cache compiles in no time
    with contextlib.redirect_stdout(sys.stderr):  # what a model of one's own prints is no part of the result
        job = prepare(Config.from_json(json.loads(arguments[0])))
        result, parameters = (look(job), {}) if "look" in arguments else measure(job)
    named: dict[str, Any] = values(parameters)
    np.savez(sys.stdout.buffer, result=np.array(json.dumps(result)), **named)


if __name__ == "__main__":
    sys.exit(run_command(main))
