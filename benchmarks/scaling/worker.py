"""A process of the checks: `python -m benchmarks.scaling.worker TASK ARGUMENTS`. Not meant to be started by hand.

It prints one line of JSON. Each check needs another number of simulated devices, or several processes, and a process
cannot change either.
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
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from benchmarks.scaling.operations import compile_step, step_flops
from pmapdp import devices
from pmapdp.collectives import collectives
from pmapdp.data.batches import Batch
from pmapdp.errors import run_command
from pmapdp.registry import MODELS, view_of
from pmapdp.scaling.workloads import COUNTED, EXAMPLES, count_step
from pmapdp.state import Task, TrainState, create_state, initial_state
from pmapdp.steps import make_steps
from pmapdp.workers import end_with_starter

SIZES = [2**exponent for exponent in range(14, 25, 2)]  # bytes on one device, 16 kB to 17 MB
STEP_BATCH = 64
RUNS_A_TURN = 4


def new_task(name: str) -> Task:
    """A model of this name, trained with Adam."""
    return Task(MODELS[name], optax.adam(1e-3))


def example_of(model: str) -> Any:
    """One input of the model of this name, without its values."""
    return EXAMPLES[view_of(MODELS[model])]


def count(model: str) -> dict[str, float]:
    """Operations of an example: what grows with the batch, by our own count and the compiler's."""
    task, (small, large) = new_task(model), COUNTED
    own = step_flops(task, large, example_of(model)) - step_flops(task, small, example_of(model))
    return {
        "own": own / (large - small),
        "compiled": count_step(model, task, example_of(model)).flops,
    }


def compiled(model: str, strategy: str, N: str) -> dict[str, Any]:
    """The collectives of a step for N simulated devices."""
    devices.simulate(int(N))
    task = new_task(model)
    program = compile_step(strategy, task, jax.devices()[: int(N)], 8, example_of(model))
    return {
        "collectives": [each._asdict() for each in collectives(program.as_text())],
        **exchanged(model),
    }


def exchanged(model: str) -> dict[str, Any]:
    """What number and bytes of a step's all-reduces follow from."""
    state = jax.eval_shape(lambda: initial_state(new_task(model)))
    return {
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        "statistics": [leaf.size for leaf in jax.tree.leaves(state.batch_stats)],
    }


def simulated(model: str, repeats: str, *counts: str) -> dict[str, Any]:
    """All-reduces and whole training steps, timed in turn on simulated devices of this machine."""
    devices.simulate(max(map(int, counts)))
    here, task = jax.devices(), new_task(model)
    state = create_state(task)
    all_reduces = [all_reduce(here[:N], size) for N in map(int, counts) for size in SIZES]
    steps = [training_step(task, state, here[:N], example_of(model)) for N in (1, *map(int, counts))]
    return {"all_reduces": timed(all_reduces, int(repeats)), "steps": timed(steps, int(repeats)), **exchanged(model)}


def gloo(model: str, repeats: str, address: str, rank: str) -> dict[str, Any]:
    """One of two processes of one device each: the same over gloo, and a step of process 0 while process 1 waits."""
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, num_processes=2, process_id=int(rank))
    # One device of each process, also where the environment asks for more.
    both = [next(device for device in jax.devices() if device.process_index == process) for process in (0, 1)]
    own, task = jax.local_devices()[:1], new_task(model)
    state = create_state(task)
    all_reduces = timed([all_reduce(both, size) for size in SIZES], int(repeats))
    steps = timed([training_step(task, state, own, example_of(model))], int(repeats)) if rank == "0" else []
    multihost_utils.sync_global_devices("process 0 has timed its own step")
    steps += timed([training_step(task, state, both, example_of(model))], int(repeats))
    return {"all_reduces": all_reduces, "steps": steps, **exchanged(model)}


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


def from_shards(mesh: Mesh, shape: tuple[int, ...], spec: PartitionSpec, dtype=np.float32) -> jax.Array:
    """An array of ones; each process fills the shards of its own devices."""
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(
        shape, sharding, lambda index: np.ones(sharding.shard_shape(shape), dtype), dtype=dtype
    )


def all_reduce(group: Sequence[jax.Device], size: int) -> Timed:
    """An all-reduce of `size` bytes on each device of `group`."""
    N, mesh = len(group), Mesh(np.array(group), ("data",))
    spec = PartitionSpec("data")

    def mean(x):
        return lax.psum(x, "data") / N  # divided, so that repeating it does not overflow

    reduce = jax.jit(jax.shard_map(mean, mesh=mesh, in_specs=spec, out_specs=spec), donate_argnums=0)
    held = [from_shards(mesh, (N, size // 4), spec)]

    def run():
        held[0] = reduce(held[0])
        return held[0]

    return Timed(N, size, run)


def training_step(task: Task, state: TrainState, group: Sequence[jax.Device], example: jax.ShapeDtypeStruct) -> Timed:
    """A training step with `STEP_BATCH` examples on each device of `group`, from a state on the host."""
    N = len(group)
    steps, mesh = make_steps("shard_map", task, group), Mesh(np.array(group), ("data",))
    rows, split = (N * STEP_BATCH,), PartitionSpec("data")
    placed = jax.tree.map(
        lambda x: jax.make_array_from_callback(x.shape, NamedSharding(mesh, PartitionSpec()), lambda index: x[index]),
        state,
    )
    batch = Batch(
        from_shards(mesh, (*rows, *example.shape), split, example.dtype),
        from_shards(mesh, rows, split, np.int32),
        from_shards(mesh, rows, split, np.int32),
        from_shards(mesh, rows, split),
    )
    held = [placed]

    def run():
        held[0], sums = steps.train_step(held[0], batch)
        return held[0], sums

    return Timed(N, None, run)


TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "count": count,
    "compiled": compiled,
    "simulated": simulated,
    "gloo": gloo,
}


def main(arguments: list[str]) -> None:
    """The command."""
    end_with_starter()
    print(json.dumps(TASKS[arguments[0]](*arguments[1:])))


if __name__ == "__main__":
    sys.exit(run_command(main))
