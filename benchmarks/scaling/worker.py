"""A process of the checks: `python -m benchmarks.scaling.worker TASK MODEL ARGUMENTS`. Not meant to be started by hand.

It prints one line of JSON. Each check needs another number of simulated devices, which a process cannot change.
"""

import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp import cli, devices
from pmapdp.compare.collectives import collectives
from pmapdp.data.batches import Batch
from pmapdp.registry import MODELS, featurizer_of
from pmapdp.scaling.workloads import EXAMPLES, batch_shapes
from pmapdp.state import Task, build, create_state, initial_state
from pmapdp.steps import make_strategy

SIZES = [2**exponent for exponent in range(14, 25, 2)]  # bytes on one device, 16 kB to 17 MB
STEP_BATCH = 64  # examples on each device
RUNS_A_TURN = 4


def new_task(model: str) -> Task:
    """A model of this name, trained with Adam."""
    return Task(build(MODELS[model]), optax.adam(1e-3))


def compiled(model: str, strategy: str, N: str) -> dict[str, Any]:
    """The collectives of a step for N simulated devices, from shapes alone."""
    devices.simulate(int(N))
    task, rows = new_task(model), (int(N), 8) if strategy == "pmap" else (8 * int(N),)
    train_step: Any = make_strategy(strategy, task, jax.devices()[: int(N)]).train_step
    shapes = jax.eval_shape(lambda: initial_state(task)), batch_shapes(rows, EXAMPLES[featurizer_of(MODELS[model])])
    program = train_step.lower(*shapes).compile().as_text()
    return {"collectives": [each._asdict() for each in collectives(program)], **exchanged(model)}


def exchanged(model: str) -> dict[str, Any]:
    """What number and bytes of a step's all-reduces follow from."""
    state = jax.eval_shape(lambda: initial_state(new_task(model)))
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "statistics": [leaf.size for leaf in jax.tree.leaves(state.model_state)],
    }


def simulated(model: str, repeats: str, *counts: str) -> dict[str, Any]:
    """All-reduces and whole training steps, timed in turn on simulated devices of this machine."""
    devices.simulate(max(map(int, counts)))
    here = jax.devices()
    all_reduces = [all_reduce(here[:N], size) for N in map(int, counts) for size in SIZES]
    steps = [training_step(model, here[:N]) for N in (1, *map(int, counts))]
    return {"all_reduces": timed(all_reduces, int(repeats)), "steps": timed(steps, int(repeats)), **exchanged(model)}


class Timed(NamedTuple):
    """What is timed: its devices, the bytes on each (None for a step), and a call that starts it."""

    devices: int
    bytes: int | None
    run: Callable[[], Any]


def timed(all_of_them: Sequence[Timed], repeats: int) -> list[dict[str, Any]]:
    """Fastest run of each, until its result is there, in as many turns as `repeats`. A first turn, which compiles and
    warms up, does not count.

    The fastest, because whatever else the machine does only ever adds time, and the model knows nothing of it. In turn,
    so that a slow spell of the machine meets all; several runs a turn, because the first finds the caches full of
    another's data.
    """
    seconds = np.empty((len(all_of_them), 1 + repeats, RUNS_A_TURN))
    for turn in range(1 + repeats):
        for each, of_each in zip(all_of_them, seconds, strict=True):
            for run in range(RUNS_A_TURN):
                clock = time.perf_counter()
                jax.block_until_ready(each.run())
                of_each[turn, run] = time.perf_counter() - clock
    least = seconds[:, 1:].min((1, 2)).tolist()
    return [
        {"devices": each.devices, "bytes": each.bytes, "seconds": fastest}
        for each, fastest in zip(all_of_them, least, strict=True)
    ]


def all_reduce(group: Sequence[jax.Device], size: int) -> Timed:
    """An all-reduce of `size` bytes on each device of `group`."""
    N, mesh, spec = len(group), Mesh(np.array(group), ("data",)), PartitionSpec("data")
    # A mean, so that repeating it does not overflow.
    mapped = jax.shard_map(lambda x: lax.psum(x, "data") / N, mesh=mesh, in_specs=spec, out_specs=spec)
    reduce = jax.jit(mapped, donate_argnums=0)
    held = [jax.device_put(np.ones((N, size // 4), np.float32), NamedSharding(mesh, spec))]

    def run():
        held[0] = reduce(held[0])
        return held[0]

    return Timed(N, size, run)


def training_step(model: str, group: Sequence[jax.Device]) -> Timed:
    """A training step with `STEP_BATCH` examples on each device of `group`."""
    N, task, example = len(group), new_task(model), EXAMPLES[featurizer_of(MODELS[model])]
    strategy, rows = make_strategy("shard_map", task, group), N * STEP_BATCH
    numbers = np.zeros(rows, np.int32)
    inputs = np.ones((rows, *example.shape), example.dtype)
    batch = strategy.place_batch(Batch(inputs, numbers, numbers, np.ones(rows, np.float32)))
    held = [strategy.place_state(create_state(task))]

    def run():
        held[0], sums = strategy.train_step(held[0], batch)
        return held[0], sums

    return Timed(N, None, run)


def main(arguments: list[str]) -> None:
    """The command."""
    task = {"compiled": compiled, "simulated": simulated}[arguments[0]]
    print(json.dumps(task(*arguments[1:])))


if __name__ == "__main__":
    sys.exit(cli.run(main))
