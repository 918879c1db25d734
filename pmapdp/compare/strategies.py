"""Train with each strategy from the same seed, and read from the arrays and the compiled programs where they differ."""

import gzip
import itertools
import json
import math
import platform
import re
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
from pmapdp.config import Config
from pmapdp.devices import describe
from pmapdp.errors import DivergedError, UserError
from pmapdp.state import create_state
from pmapdp.steps import STRATEGIES
from pmapdp.train import prepare

STACKED = "pmap, stacked"
MAKERS: dict[str, Any] = {**STRATEGIES, STACKED: stacked.make_strategy}
GROUPS = 10  # of updates that are timed together; the first compiles and warms up
Run = dict[str, Any]


def in_new_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in a process of its own, because a process can't change its number of devices."""
    try:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            return pool.submit(function, *arguments).result()
    except BrokenProcessPool:
        raise UserError("the process of a run was ended, perhaps for want of memory: try a smaller batch") from None


def compare_strategies(
    config: Config, names: Sequence[str], counts: Sequence[int | None], say: Callable[[str], None]
) -> list[Run]:
    """Run a single device, and each strategy on each number of devices. All get the batch of the most devices."""
    runs: list[Run] = []
    parameters: list[Any] = []
    batch: dict[str, Any] = {}
    for each in [replace(config, devices=count) for count in counts]:  # a wrong count ends it before the first run
        found = in_new_process(run_strategies, replace(each, **batch), names)
        batch = {"global_batch_size": found[0][0]["global_batch_size"], "per_device_batch_size": None}
        for run, trained in found:
            say(f"{run['name']}: done")
            runs.append(run)
            parameters.append(trained)
    [(single, reference)] = in_new_process(run_strategies, replace(config, devices=1, **batch), ["single"])
    say("single: done")
    for run, trained in zip(runs, parameters, strict=True):
        run["largest_difference"] = largest_difference(trained, reference)
    return [single | {"largest_difference": 0.0}, *runs]


def largest_difference(tree: Any, other: Any) -> float:
    """The largest difference of two trees of arrays, in any element."""
    pairs = zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True)
    return max(float(np.max(np.abs(a.astype(np.float64) - b), initial=0)) for a, b in pairs)


def run_strategies(config: Config, names: Sequence[str]) -> list[tuple[Run, Any]]:
    """Train with each strategy on the same devices, a group of updates in turn, so that all meet the same machine.

    Returns:
        The facts and the last parameters, on the host, of each.

    Raises:
        UserError: there are too few updates to time.
        DivergedError: the loss is not finite.
    """
    with jax.enable_x64(config.dtype == "float64"):
        trainings = [Training(config, name) for name in names]
        for _ in range(GROUPS):
            for training in trainings:
                training.run_group()
        return [(training.facts(), training.trained()) for training in trainings]


class Training:
    """A run of one strategy that stops after every group of updates."""

    def __init__(self, config: Config, name: str):
        self.name = name
        strategy: Any = "pmap" if name == STACKED else name
        self.job = job = prepare(replace(config, strategy=strategy))
        if job.total_steps < GROUPS:
            updates = "a single update is" if job.total_steps == 1 else f"{job.total_steps} updates are"
            raise UserError(f"{updates} too few to time: try --steps 20, with a smaller batch")
        self.seen: set[tuple[int, ...]] = set()  # shapes of inputs, when the function is traced
        self.strategy: Any = MAKERS[name](replace(job.task, loss=self.spy(job.task.loss)), job.devices)
        self.state: Any = self.strategy.place_state(create_state(job.task))
        train = job.batches["train"]
        epochs = (train.epoch(number) for number in itertools.count())
        self.batches = itertools.islice(itertools.chain.from_iterable(epochs), job.total_steps)
        self.batch = self.strategy.place_batch(next(train.epoch(0)))
        self.program = self.strategy.train_step.lower(self.state, self.batch).compile()  # the calls below use it, too
        self.losses: list[float] = []
        self.milliseconds: list[float] = []
        self.holds = {"state": what_devices_hold(self.state), "batch": what_devices_hold(self.batch)}

    def spy(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """Note the shape of the inputs that the loss sees."""

        def spied(model: Any, batch: Any, *rest: Any) -> Any:
            self.seen.add(tuple(batch.inputs.shape))
            return loss(model, batch, *rest)

        return spied

    def run_group(self) -> None:
        """Make some updates. Their time includes taking batches on the host and placing them, as in training."""
        started, group = time.perf_counter(), []
        for batch in itertools.islice(self.batches, self.job.total_steps // GROUPS):
            self.state, sums = self.strategy.train_step(self.state, self.strategy.place_batch(batch))
            group.append(sums)
        jax.block_until_ready((self.state, group))
        self.milliseconds.append(1000 * (time.perf_counter() - started) / len(group))
        for sums in self.strategy.fetch(group):
            self.losses.append(float(sums.loss) / float(sums.count))
            if not math.isfinite(self.losses[-1]):
                raise DivergedError(
                    f"the loss is {self.losses[-1]} at step {len(self.losses)}: try a lower --learning-rate"
                )

    def trained(self) -> Any:
        """The last parameters, on the host."""
        return self.strategy.fetch(self.state).params

    def facts(self) -> Run:
        """What was measured, and what arrays and compiled program say."""
        text = self.program.as_text()
        facts = describe_run(self.name, self.job.devices, self.job.batches["train"].batch_size, self.milliseconds[1:])
        return facts | {
            "strategy": self.name,
            "sees": list(max(self.seen)),
            "holds": self.holds,
            "losses": self.losses,
            "collectives": instructions(text),
            "memory": memory_per_device(self.program.memory_analysis()),
            "timeline": self.trace_update(text),
        }

    def trace_update(self, hlo: str) -> list[list[Any]]:
        """Profile one more update: [device, phase, start, end] in milliseconds for each operation."""
        with tempfile.TemporaryDirectory() as folder:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0
            with jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options):
                self.state, sums = self.strategy.train_step(self.state, self.batch)
                jax.block_until_ready((self.state, sums))
            (file,) = Path(folder).rglob("perfetto_trace.json.gz")
            events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        names = dict(re.findall(r'^\s*(?:ROOT )?%(\S+) = .*op_name="([^"]*)"', hlo, re.MULTILINE))
        found = []
        for event in events:
            given = event.get("args", {})
            if event.get("ph") == "X" and "hlo_op" in given and not event["name"].startswith(("while", "call")):
                phase = phase_of(given["hlo_op"], names.get(given["hlo_op"], ""))
                found.append(
                    [
                        int(given.get("device_ordinal", 0)),
                        phase,
                        event["ts"] / 1000,
                        (event["ts"] + event["dur"]) / 1000,
                    ]
                )
        first = min((start for *_, start, _ in found), default=0.0)
        return [[device, phase, start - first, end - first] for device, phase, start, end in sorted(found)]


def describe_run(name: str, devices: Sequence[jax.Device], examples: int, milliseconds: Sequence[float]) -> Run:
    """Describe where a run ran, and how fast: the median time of an update, and where the middle half lies."""
    low, median, high = np.percentile(milliseconds, (25, 50, 75)).tolist()
    return {
        "name": f"{name} \u00d7 {len(devices)}" if len(devices) > 1 else name,
        "devices": len(devices),
        "global_batch_size": examples,
        "simulated": len(devices) > 1 and devices[0].platform == "cpu",
        "machine": f"{describe(list(devices))}, jax {jax.__version__}, Python {platform.python_version()}",
        "step_ms": {"low": low, "median": median, "high": high},
        "examples_per_second": 1000 * examples / median,
    }


def phase_of(operation: str, name: str) -> str:
    """Tell to which part of an update an operation belongs, by the name that JAX's transformations gave it."""
    if "all-reduce" in operation:
        return "all-reduce"
    return "backward" if "transpose(" in name else "forward" if "jvp(" in name else "update"


def what_devices_hold(tree: Any) -> dict[str, Any]:
    """Describe the largest array of a tree, and the bytes of all on one device."""
    leaves = jax.tree.leaves(tree)
    largest = max(leaves, key=lambda leaf: leaf.size)
    shards = largest.addressable_shards
    return {
        "shape": list(largest.shape),
        "on_device": list(shards[0].data.shape),
        "sharding": f"P({', '.join(map(repr, getattr(largest.sharding, 'spec', ())))})",
        "split": len({str(shard.index) for shard in shards}) > 1,
        "bytes": sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves),
    }


def memory_per_device(plan: Any) -> dict[str, int]:
    """Bytes on one device by the compiler's plan: what goes in, what comes out beside donated memory, and the rest."""
    results = plan.output_size_in_bytes - plan.alias_size_in_bytes
    return {"arguments": plan.argument_size_in_bytes, "results": results, "temporary": plan.temp_size_in_bytes}
