"""What is trained: numbers that a prediction needs of a model, published or counted from a compiled step."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from pmapdp.custom.checks import check_task
from pmapdp.data.batches import Batch
from pmapdp.data.dataset import DataSet, Split
from pmapdp.data.tfidf import FEATURES
from pmapdp.data.tokens import LENGTH
from pmapdp.registry import featurizer_of
from pmapdp.scaling.hardware import A100
from pmapdp.state import Task, build, initial_state
from pmapdp.steps import make_strategy

# One input by what a model takes (`pmapdp.registry.featurizer_of`).
EXAMPLES = {
    "images": jax.ShapeDtypeStruct((28, 28, 1), np.uint8),
    "tfidf": jax.ShapeDtypeStruct((FEATURES,), np.float32),
    "tokens": jax.ShapeDtypeStruct((LENGTH,), np.int32),
}
COUNTED = (64, 128)  # batch sizes; what grows between them is an example's
# Of a model for which no figure is published: about what ResNet-50 attains in TF32. An assumption.
ASSUMED = 0.15


@dataclass(frozen=True)
class Workload:
    """A model, as training sees it. Parameters, gradients and optimizer state are float32."""

    name: str
    parameters: int  # trainable scalars
    flops: float  # floating-point operations for one example, forward and backward
    bytes: float = 0.0  # read and written in device memory for one example; 0: not known, taken to hide behind `flops`
    fixed_bytes: float = 0.0  # the same, for an update whatever the batch
    # Share of a device's peak FLOP/s that its forward and backward pass attain, by the type of the computation.
    utilization: dict[str, float] = field(default_factory=lambda: {"float32": ASSUMED, "bfloat16": ASSUMED})

    @property
    def update_bytes(self) -> int:
        """Bytes that an update by Adam moves: the gradient is read; the parameter and its two moments are read and
        written."""
        return 4 * self.parameters * (1 + 2 + 4)


# A multiply-add counts as two operations; the backward pass takes twice the forward's. ResNet-50: He et al.,
# arXiv:1512.03385, 2015; parameters and 4.09e9 multiply-adds at 224 x 224 are those in torchvision's documentation.
# GPT-2: Radford et al., 2019; an example is 1,024 tokens of 6 operations a parameter (Kaplan et al., arXiv:2001.08361,
# 2020).
RESNET_FLOPS, GPT_FLOPS = 3 * 2 * 4.09e9, 6 * 124_439_808 * 1024
# What they attain, measured on one kind of device and taken for all. ResNet-50: NVIDIA's DeepLearningExamples, PyTorch
# ResNet50 v1.5, "Training performance: NVIDIA DGX A100": one A100 trains 938 images/s in TF32 and 2,470 in mixed
# precision. GPT-2: A. Karpathy, llm.c, "Reproducing GPT-2 (124M) in llm.c in 90 minutes for $20", 2024: 10e9 tokens in
# 90 minutes on 8 A100 in bfloat16; in float32 it is assumed to attain the same share.
RESNET_SHARES = {
    "float32": 938 * RESNET_FLOPS / A100.peak["float32"],
    "bfloat16": 2470 * RESNET_FLOPS / A100.peak["bfloat16"],
}
GPT_SHARE = 10e9 / 1024 * GPT_FLOPS / (90 * 60) / (8 * A100.peak["bfloat16"])
PUBLISHED = {
    "resnet-50": Workload("resnet-50", 25_557_032, RESNET_FLOPS, utilization=RESNET_SHARES),
    "gpt-2": Workload("gpt-2", 124_439_808, GPT_FLOPS, utilization={"float32": GPT_SHARE, "bfloat16": GPT_SHARE}),
}


def batch_shapes(rows: tuple[int, ...], example: jax.ShapeDtypeStruct) -> Batch:
    """A batch of `rows` examples without its arrays."""
    inputs = jax.ShapeDtypeStruct((*rows, *example.shape), example.dtype)
    return Batch(inputs, *(jax.ShapeDtypeStruct(rows, dtype) for dtype in (np.int32, np.int32, np.float32)))


def count_step(name: str, model: Callable[..., nnx.Module], dtype: str = "float32") -> Workload:
    """A model of ours, trained with Adam, from the compiler's analysis of two steps of different batch sizes: what
    grows between them is an example's."""
    built = build(model, dtype=dtype)
    task, example = Task(built, optax.adam(1e-3)), EXAMPLES[featurizer_of(built)]
    some = Split(np.zeros((1, *example.shape), example.dtype), np.zeros(1, np.int32))
    check_task(task, DataSet(some, some), own=False)  # a model of one's own may take other inputs
    train_step: Any = make_strategy("single", task, jax.devices()[:1]).train_step
    state = jax.eval_shape(lambda: initial_state(task))
    batches = [batch_shapes((size,), example) for size in COUNTED]
    small, large = (train_step.lower(state, batch).compile().cost_analysis() for batch in batches)
    flops, moved = ((large[key] - small[key]) / (COUNTED[1] - COUNTED[0]) for key in ("flops", "bytes accessed"))
    workload = Workload(name, sum(leaf.size for leaf in jax.tree.leaves(state.params)), flops, moved)
    # The compiled step has the update in it, which a prediction counts by itself.
    rest = small["bytes accessed"] - COUNTED[0] * moved - workload.update_bytes
    return replace(workload, fixed_bytes=max(0.0, rest))
