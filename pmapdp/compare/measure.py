"""One run, measured: losses, times, memory, collectives, and where the rows of a batch lie."""

import itertools
import statistics
import time
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from pmapdp.collectives import collectives
from pmapdp.config import Config
from pmapdp.data.batches import Batch
from pmapdp.errors import DivergedError
from pmapdp.job import Job, prepare
from pmapdp.sharding.layout import bytes_on_a_device
from pmapdp.state import create_state

LARGEST_GROUP = 20


def measure(config: Config) -> tuple[dict[str, Any], Any]:
    """Train as `config` says; the results and the last state.

    Raises:
        UserError: the job cannot run here, or the loss is not finite.
    """
    started = time.perf_counter()
    jax.config.update("jax_enable_compilation_cache", False)  # a program read from a cache compiles in no time
    job = prepare(config)
    state = create_state(job.task, job.steps.state_sharding)
    batches = itertools.islice(all_batches(job), job.total_steps)
    placed = job.steps.place_batch(first := next(batches))

    train_step: Any = job.steps.train_step
    clock = time.perf_counter()
    compiled = train_step.lower(state, placed).compile()  # the calls below find and use this program
    compile_seconds = time.perf_counter() - clock
    state, sums = jax.block_until_ready(train_step(state, placed))
    first_step_seconds = time.perf_counter() - started

    groups: list[tuple[float, int, int]] = []
    every_sums = [job.steps.fetch(sums)]
    size = min(LARGEST_GROUP, max(1, job.total_steps // 10))
    while group := list(itertools.islice(batches, size)):
        state, group_sums, seconds = time_group(job, state, group)
        every_sums += job.steps.fetch(group_sums)
        groups.append((seconds, len(group), sum(batch.examples for batch in group)))
    losses = [float(sums.loss) / float(sums.count) for sums in every_sums]
    if not np.isfinite(losses).all():
        step = int(np.flatnonzero(~np.isfinite(losses))[0]) + 1
        raise DivergedError(f"the loss is {losses[step - 1]} at step {step}: try a lower --learning-rate")

    return {
        "losses": losses,
        "compile_seconds": compile_seconds,
        "first_step_seconds": first_step_seconds,
        **speed(groups[1:]),  # the first group warms caches up
        "parameter_bytes": bytes_on_a_device(state.params),
        "optimizer_bytes": bytes_on_a_device(state.optimizer_state),
        "batch_bytes": bytes_on_a_device(placed),
        "collectives": [each._asdict() for each in collectives(compiled.as_text())],
        "batch": layout(job, first),
    }, job.steps.fetch(state)


def all_batches(job: Job) -> Iterator[Batch]:
    """The batches of all epochs."""
    for epoch in itertools.count():
        yield from job.train_batches.epoch(epoch)


def time_group(job: Job, state: Any, group: Iterable[Batch]) -> tuple[Any, list[Any], float]:
    """Train on several batches and wait once, at the end: the new state, the metrics, the seconds.

    The host prepares the next step while the devices compute. Waiting after each step would forbid that, and
    measure something that no training run does.
    """
    sums = []
    clock = time.perf_counter()
    for batch in group:
        state, step_sums = job.steps.train_step(state, job.steps.place_batch(batch))
        sums.append(step_sums)
    jax.block_until_ready(state)
    return state, sums, time.perf_counter() - clock


def speed(groups: list[tuple[float, int, int]]) -> dict[str, Any]:
    """Milliseconds a step (median and the quartiles around it) and examples/s, from (seconds, steps, examples)."""
    if not groups:
        return {"step_ms": None, "images_per_second": None}
    times = [1000 * seconds / steps for seconds, steps, _ in groups]
    low, _, high = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return {
        "step_ms": {"median": statistics.median(times), "low": low, "high": high, "groups": len(groups)},
        "images_per_second": statistics.median(examples / seconds for seconds, _, examples in groups),
    }


def layout(job: Job, batch: Batch) -> dict[str, Any]:
    """Where the rows of a batch lie, read from the devices: rows are numbered, placed, and looked up again."""
    numbered = job.steps.place_batch(batch._replace(indices=np.arange(len(batch.indices), dtype=np.int32)))
    position = {device: number for number, device in enumerate(job.devices)}
    owner = np.full(len(batch.indices), -1)
    for shard in numbered.indices.addressable_shards:
        owner[np.ravel(shard.data)] = position[shard.device]
    sharding, shard = numbered.inputs.sharding, numbered.inputs.addressable_shards[0]
    return {
        "shape": list(numbered.inputs.shape),
        "shard_shape": list(shard.data.shape),
        "sharding": f"{type(sharding).__name__} {getattr(sharding, 'spec', '')}".strip(),
        "rows_shape": list(numbered.indices.shape),
        "devices": owner.tolist(),
        "padding": np.flatnonzero(batch.weights == 0).tolist(),
    }
