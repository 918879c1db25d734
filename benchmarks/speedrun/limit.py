"""How much of the machine's matrix speed a step of the recipe reaches, and where the rest goes."""

import re
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from pmapdp.command.flags import parse
from pmapdp.job import Job, prepare
from pmapdp.malloc import keep_freed_memory
from pmapdp.models.speedrun import Speedrun
from pmapdp.run.profile import longest_operations
from pmapdp.state import create_state

SIDE, REPEATS = 2000, 30


def seconds_of(function: Any, *arguments: Any) -> float:
    """The least of several calls after two that warm up."""
    times = []
    for _ in range(REPEATS + 2):
        clock = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - clock)
    return min(times[2:])


def by_hand(batch: int) -> int:
    """Operations of one update: products of the forward pass, of the weights' gradients and of the inputs', which the
    first layer does not need; a multiplication and an addition each."""
    first, second, hidden = Speedrun.widths
    conv1 = 24 * 24 * 25 * first
    others = 10 * 10 * 9 * first * second + 25 * second * hidden + hidden * 10
    return 2 * batch * (2 * conv1 + 3 * others)


def kinds(lines: list[str]) -> dict[str, float]:
    """Of the longest operations the share of time by kind: their names without numbers."""
    shares: Counter[str] = Counter()
    for line in lines:
        _, _, share, _, _, _, name = line.split()
        kind = re.sub(r"[.\d]+$", "", name)
        if not kind.startswith(("while", "call", "conditional")):  # they only hold others
            shares[kind] += float(share)
    return {kind: share / sum(shares.values()) for kind, share in shares.most_common(10)}


def measure(flags: list[str]) -> dict[str, Any]:
    """The figures of the part `limit`."""
    keep_freed_memory()
    job: Job = prepare(parse(["speedrun", *flags]))
    state, S = create_state(job.task, job.steps.state_sharding), job.steps_per_dispatch
    _, placed = next(job.dispatches(0))

    def updates():
        nonlocal state
        state, sums = job.train_steps(state, *placed)
        return sums

    step = seconds_of(updates) / S
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            jax.block_until_ready(updates())
        lines = longest_operations(next(Path(folder).glob("**/perfetto_trace.json.gz")), most=10_000)
    square = jnp.ones((SIDE, SIDE))
    rate = 2 * SIDE**3 / seconds_of(jax.jit(jnp.dot), square, square)
    operations = by_hand(job.global_batch_size)
    found = {
        "operations": operations,
        "step_ms": 1000 * step,
        "gflop_per_second": operations / step / 1e9,
        "machine_gflop_per_second": rate / 1e9,
        "share": operations / step / rate,
        "kinds": kinds(lines),
    }
    print(found)
    return found
