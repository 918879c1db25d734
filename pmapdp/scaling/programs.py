"""What a training step of ours costs, compiled from shapes alone: no data and no parameters are made."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import optax

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
COUNTED = (64, 128)  # batch sizes; what grows between them is an example's


def batch_shapes(rows: tuple[int, ...], example: jax.ShapeDtypeStruct) -> Batch:
    """A batch of `rows` examples without its arrays."""
    inputs = jax.ShapeDtypeStruct((*rows, *example.shape), example.dtype)
    return Batch(inputs, *(jax.ShapeDtypeStruct(rows, dtype) for dtype in (np.int32, np.int32, np.float32)))


def slots(optimizer: optax.GradientTransformation) -> int:
    """Numbers of optimizer state beside each parameter: sgd has 0, momentum 1, Adam 2."""
    state = jax.eval_shape(optimizer.init, jax.ShapeDtypeStruct((1,), np.float32))
    return sum(leaf.shape == (1,) for leaf in jax.tree.leaves(state))


def count_step(name: str, task: Task, example: jax.ShapeDtypeStruct) -> Workload:
    """One of our models, from two compiled steps of different batch sizes: what grows between them is an example's."""
    device, (small, large) = jax.devices()[0], COUNTED
    train_step: Any = make_steps("single", task, [device]).train_step
    state = jax.eval_shape(lambda: initial_state(task))
    programs = [train_step.lower(state, batch_shapes((size,), example)).compile().cost_analysis() for size in COUNTED]
    flops, moved = ((programs[1][key] - programs[0][key]) / (large - small) for key in ("flops", "bytes accessed"))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    source = f"XLA's analysis of the compiled step, on {device.platform}"
    workload = Workload(name, parameters, flops, moved, source=source)
    # The compiled step has the update in it, which a prediction counts by itself.
    rest = programs[0]["bytes accessed"] - small * moved - workload.update_bytes(slots(task.optimizer))
    return replace(workload, fixed_bytes=max(0.0, rest))
