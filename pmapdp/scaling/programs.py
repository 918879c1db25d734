"""Training steps compiled from shapes alone: no data, no parameters, and no copy of the state on any device."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.data.batches import Batch
from pmapdp.data.tfidf import FEATURES
from pmapdp.data.tokens import LENGTH
from pmapdp.scaling.workloads import Workload
from pmapdp.state import Task, initial_state
from pmapdp.steps import make_steps

# One input by what a model takes (`pmapdp.registry.view_of`).
EXAMPLES = {
    "images": jax.ShapeDtypeStruct((28, 28, 1), np.uint8),
    "tfidf": jax.ShapeDtypeStruct((FEATURES,), np.float32),
    "tokens": jax.ShapeDtypeStruct((LENGTH,), np.int32),
}
IMAGE = EXAMPLES["images"]
COUNTED = (64, 128)  # batch sizes; what grows between them is an example's


def step_shapes(
    strategy: str, task: Task, devices: list[jax.Device], per_device_batch: int, example: jax.ShapeDtypeStruct = IMAGE
) -> tuple[Any, Any]:
    """State and batch of a training step as `jax.ShapeDtypeStruct`s, placed as `strategy` places them."""
    N, b = len(devices), per_device_batch
    state = jax.eval_shape(lambda: initial_state(task))
    rows = (N, b) if strategy == "pmap" else (N * b,)
    batch = Batch(
        jax.ShapeDtypeStruct((*rows, *example.shape), example.dtype),
        jax.ShapeDtypeStruct(rows, np.int32),
        jax.ShapeDtypeStruct(rows, np.int32),
        jax.ShapeDtypeStruct(rows, np.float32),
    )
    if strategy == "single":
        return state, batch
    mesh = Mesh(np.array(devices), ("data",))

    def placed(tree: Any, spec: PartitionSpec) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree)

    return placed(state, PartitionSpec()), placed(batch, PartitionSpec("data"))


def compile_step(
    strategy: str, task: Task, devices: list[jax.Device], per_device_batch: int, example: jax.ShapeDtypeStruct = IMAGE
) -> Any:
    """The compiled training step (`jax.stages.Compiled`) of `strategy` on `devices`, of which nothing is run."""
    train_step: Any = make_steps(strategy, task, devices).train_step
    return train_step.lower(*step_shapes(strategy, task, devices, per_device_batch, example)).compile()


def slots(optimizer: optax.GradientTransformation) -> int:
    """Numbers of optimizer state beside each parameter: sgd has 0, momentum 1, Adam 2."""
    state = jax.eval_shape(optimizer.init, jax.ShapeDtypeStruct((1,), np.float32))
    return sum(leaf.shape == (1,) for leaf in jax.tree.leaves(state))


def count_step(name: str, task: Task, example: jax.ShapeDtypeStruct) -> Workload:
    """One of our models, from two compiled steps of different batch sizes: what grows between them is an example's."""
    small, large = COUNTED
    programs = [compile_step("single", task, jax.devices()[:1], size, example).cost_analysis() for size in COUNTED]
    flops, moved = ((programs[1][key] - programs[0][key]) / (large - small) for key in ("flops", "bytes accessed"))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(lambda: initial_state(task)).params))
    source = f"XLA's analysis of the compiled step, on {jax.devices()[0].platform}"
    workload = Workload(name, parameters, flops, moved, source=source)
    # The compiled step has the update in it, which a prediction counts by itself.
    rest = programs[0]["bytes accessed"] - small * moved - workload.update_bytes(slots(task.optimizer))
    return replace(workload, fixed_bytes=max(0.0, rest))
