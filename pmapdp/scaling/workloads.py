"""What is trained: numbers that a prediction needs of a model, published or counted from a compiled step."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import optax

from pmapdp.data.batches import Batch
from pmapdp.data.tfidf import FEATURES
from pmapdp.data.tokens import LENGTH
from pmapdp.state import Task, initial_state
from pmapdp.steps import make_steps

# One input by what a model takes (`pmapdp.registry.view_of`).
EXAMPLES = {
    "images": jax.ShapeDtypeStruct((28, 28, 1), np.uint8),
    "tfidf": jax.ShapeDtypeStruct((FEATURES,), np.float32),
    "tokens": jax.ShapeDtypeStruct((LENGTH,), np.int32),
}
COUNTED = (64, 128)  # batch sizes; what grows between them is an example's


@dataclass(frozen=True)
class Workload:
    """A model, as training sees it. Parameters, gradients and optimizer state are float32."""

    name: str
    parameters: int  # trainable scalars
    flops: float  # floating-point operations for one example, forward and backward
    bytes: float = 0.0  # read and written in device memory for one example; 0: not known, taken to hide behind `flops`
    fixed_bytes: float = 0.0  # the same, for an update whatever the batch
    source: str = ""  # of the figures

    def update_bytes(self, slots: int) -> float:
        """Bytes that the update moves: the gradient is read, the parameter and its `slots` numbers of optimizer state
        are read and written."""
        return 4 * self.parameters * (1 + 2 + 2 * slots)

    def state_bytes(self, slots: int) -> float:
        """Bytes of the optimizer's state."""
        return 4 * self.parameters * slots


# A multiply-add counts as two operations; the backward pass takes twice the forward's.
PUBLISHED = {
    "resnet-50": Workload(
        "resnet-50",
        parameters=25_557_032,
        flops=3 * 2 * 4.09e9,
        source="He et al., arXiv:1512.03385, 2015; parameters and 4.09e9 multiply-adds at 224 x 224: torchvision's "
        "documentation of resnet50",
    ),
    "gpt-2": Workload(
        "gpt-2",
        parameters=124_439_808,
        flops=6 * 124_439_808 * 1024,
        source="Radford et al., 2019; an example is 1,024 tokens of 6 operations a parameter: Kaplan et al., "
        "arXiv:2001.08361, 2020",
    ),
}


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
