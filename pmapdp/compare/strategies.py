"""Train with each strategy from the same seed, and read their differences from arrays and compiled programs."""

import gzip
import itertools
import json
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapdp.compare import stacked
from pmapdp.compare.collectives import instructions
from pmapdp.compare.stacked import STACKED
from pmapdp.compare.words import Run
from pmapdp.config import Config
from pmapdp.devices import describe
from pmapdp.errors import DivergedError, UserError
from pmapdp.state import create_state
from pmapdp.steps import STRATEGIES
from pmapdp.train import prepare

MAKERS: dict[str, Any] = {**STRATEGIES, STACKED: stacked.make_strategy}
GROUPS = 10  # of updates that are timed together; the first compiles and warms up


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own, because a process can't change its number of devices."""
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()
    except BrokenProcessPool:
        raise UserError(
            "the process of a run was ended, perhaps for want of memory: try a smaller batch"
        ) from None


def compare_strategies(
    config: Config, names: Sequence[str], counts: Sequence[int | None]
) -> list[Run]:
    """Run a single device, and each strategy on each number of devices. All get the batch of the most devices."""
    found: list[tuple[Run, Any]] = []
    batch: dict[str, Any] = {}
    for each in [
        replace(config, devices=count) for count in counts
    ]:  # a wrong count ends it before the first run
        found += in_new_process(run_strategies, replace(each, **batch), names)
        batch = {
            "global_batch_size": found[0][0]["global_batch_size"],
            "per_device_batch_size": None,
        }
    [(single, reference)] = in_new_process(
        run_strategies, replace(config, devices=1, **batch), ["single"]
    )
    for run, parameters in found:
        run["largest_difference"] = largest_difference(parameters, reference)
    return [single | {"largest_difference": 0.0}, *(run for run, _ in found)]


def largest_difference(tree: Any, other: Any) -> float:
    """Return the largest difference of two trees of arrays, in any element: NaN if one is. Infinity equals itself."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return float(
        np.max(
            [
                np.max(np.abs(a.astype(np.float64) - b), initial=0, where=a != b)
                for a, b in pairs
            ]
        )
    )


def run_strategies(config: Config, names: Sequence[str]) -> list[tuple[Run, Any]]:
    """Train with each strategy on the same devices, and return what was found and the last parameters of each.

    They make a group of updates in turn, so that all meet the same machine.
    """
    with jax.enable_x64(config.dtype == "float64"):
        trainings = [Training(config, name) for name in names]
        for _ in range(GROUPS):
            for training in trainings:
                training.run_group()
        parameters = [
            training.strategy.fetch(training.state).params for training in trainings
        ]
        return list(
            zip([training.facts() for training in trainings], parameters, strict=True)
        )


class Training:
    """A run of one strategy that stops after every group of updates."""

    def __init__(self, config: Config, name: str):
        self.name = name
        strategy: Any = "pmap" if name == STACKED else name
        self.job = job = prepare(replace(config, strategy=strategy))
        if job.total_steps < GROUPS:
            raise UserError(
                f"--steps {job.total_steps} is too few to time, as a single update varies: try --steps 20"
            )

        def noted_loss(model: Any, batch: Any) -> Any:
            self.sees = list(batch.inputs.shape)  # when it's traced
            return job.task.loss(model, batch)

        self.strategy: Any = MAKERS[name](
            replace(job.task, loss=noted_loss), job.devices
        )
        self.state: Any = self.strategy.place_state(create_state(job.task))
        train = job.batches["train"]
        self.batches = itertools.chain.from_iterable(
            train.epoch(number) for number in itertools.count()
        )
        self.batch = self.strategy.place_batch(next(train.epoch(0)))
        self.program = self.strategy.train_step.lower(
            self.state, self.batch
        ).compile()  # the calls below use it, too
        self.losses: list[float] = []
        self.milliseconds: list[float] = []
        self.holds = {
            "state": what_devices_hold(self.state),
            "batch": what_devices_hold(self.batch),
        }

    def run_group(self) -> None:
        """Make some updates. Their time includes taking batches on the host and placing them, as in training."""
        started, group = time.perf_counter(), []
        for batch in itertools.islice(self.batches, self.job.total_steps // GROUPS):
            self.state, sums = self.strategy.train_step(
                self.state, self.strategy.place_batch(batch)
            )
            group.append(sums)
        jax.block_until_ready((self.state, group))
        self.milliseconds.append(1000 * (time.perf_counter() - started) / len(group))
        for sums in self.strategy.fetch(group):
            self.losses.append(float(sums.loss) / float(sums.count))
            if not math.isfinite(self.losses[-1]):
                raise DivergedError(
                    f"the loss is {self.losses[-1]} at step {len(self.losses)}: try a lower --learning-rate"
                )

    def facts(self) -> Run:
        """Return what was measured, and what arrays and compiled program say."""
        B = self.job.batches["train"].batch_size
        run = describe_run(
            self.name, self.job.devices, B, self.milliseconds[1:], self.program
        )
        return run | {
            "sees": self.sees,
            "holds": self.holds,
            "losses": self.losses,
            "timeline": self.trace_update(),
        }

    def trace_update(self) -> list[list[Any]]:
        """Profile one more update, the last: [device, phase, start, end] in ms. Operations without a gap are one."""
        with tempfile.TemporaryDirectory() as folder:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            with jax.profiler.trace(
                folder, create_perfetto_trace=True, profiler_options=options
            ):
                jax.block_until_ready(self.strategy.train_step(self.state, self.batch))
            (file,) = Path(folder).rglob("perfetto_trace.json.gz")
            events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        names = dict(
            re.findall(
                r'^\s*(?:ROOT )?%(\S+) = .*op_name="([^"]*)"',
                self.program.as_text(),
                re.MULTILINE,
            )
        )
        found: list[list[Any]] = []
        for event in events:
            given = event.get("args", {})
            if (
                event.get("ph") == "X"
                and "hlo_op" in given
                and not event["name"].startswith(("while", "call"))
            ):
                phase = phase_of(given["hlo_op"], names.get(given["hlo_op"], ""))
                start, end = event["ts"] / 1000, (event["ts"] + event["dur"]) / 1000
                found.append([int(given.get("device_ordinal", 0)), phase, start, end])
        first = min((start for *_, start, _ in found), default=0.0)
        last = max((end for *_, end in found), default=0.0)
        joined: list[list[Any]] = []
        for device, phase, start, end in sorted(found):
            if (
                joined
                and joined[-1][:2] == [device, phase]
                and start - first - joined[-1][3] < (last - first) / 200
            ):
                joined[-1][3] = max(end - first, joined[-1][3])
            else:
                joined.append([device, phase, start - first, end - first])
        return joined


def describe_run(
    strategy: str,
    devices: Sequence[jax.Device],
    B: int,
    times: Sequence[float],
    program: Any,
) -> Run:
    """Describe a run: where, how fast (the median time of an update, and the middle half), and the compiled program."""
    low, median, high = np.percentile(times, (25, 50, 75)).tolist()
    label, plan = os.path.basename(strategy), program.memory_analysis()
    name = f"{label} \u00d7 {len(devices)}" if len(devices) > 1 else label
    print(f"{name}: done", file=sys.stderr, flush=True)  # at once, also into a file
    return {
        "name": name,
        "label": label,
        "strategy": strategy,
        "devices": len(devices),
        "global_batch_size": B,
        "simulated": len(devices) > 1 and devices[0].platform == "cpu",
        "machine": f"{describe(list(devices))}, jax {jax.__version__}, Python {platform.python_version()}",
        "step_ms": {"low": low, "median": median, "high": high},
        "examples_per_second": 1000 * B / median,
        "collectives": instructions(program.as_text()),
        "memory": {  # bytes on a device, by the compiler's plan; results that reuse donated memory take none
            "arguments": plan.argument_size_in_bytes,
            "results": plan.output_size_in_bytes - plan.alias_size_in_bytes,
            "temporary": plan.temp_size_in_bytes,
        },
    }


def phase_of(operation: str, name: str) -> str:
    """Tell to which part of an update an operation belongs, by the name that JAX's transformations gave it."""
    if "all-reduce" in operation:
        return "all-reduce"
    return (
        "backward"
        if "transpose(" in name
        else "forward"
        if "jvp(" in name
        else "update"
    )


def what_devices_hold(tree: Any) -> dict[str, Any]:
    """Describe the largest array of a tree, and a device's part of it."""
    leaves = jax.tree.leaves(tree)
    largest = max(leaves, key=lambda leaf: leaf.size)
    shards = largest.addressable_shards
    return {
        "shape": list(largest.shape),
        "on_device": list(shards[0].data.shape),
        "split": len({str(shard.index) for shard in shards}) > 1,
    }
