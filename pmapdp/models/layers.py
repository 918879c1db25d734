"""What the models need beyond Flax: what a layer must know of the batch, dropout per example, and max-pooling.

Lesson 08 teaches this file. Shapes: b examples on this device, H height, W width, C channels.
"""

import contextlib
import contextvars
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike

AxisName = str | tuple[str, ...] | None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Context:
    """What a layer must know about the batch beside its activations.

    Attributes:
        weights: `[b]`, 1 for an example and 0 for padding; None means that all count.
        keys: `[b]` random keys, one an example; needed by dropout in training.
        step: `[]` updates made so far; needed by batch norm in training.
        train: True in training, False in evaluation.
        axis_name: the mapped axis (or axes) over which the global batch is split (`pmap`, `shard_map`), or None where
            the arrays hold the global batch (`jit`, a single device).
    """

    weights: jax.Array | None = None
    keys: jax.Array | None = None
    step: jax.Array | int = 0
    train: bool = field(default=False, metadata={"static": True})
    axis_name: AxisName = field(default=None, metadata={"static": True})

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, layers that are called without a context find this one by `current_context`."""
        token = CURRENT.set(self)
        try:
            yield
        finally:
            CURRENT.reset(token)


EVALUATION = Context()
CURRENT: contextvars.ContextVar[Context] = contextvars.ContextVar("context", default=EVALUATION)
current_context = CURRENT.get  # the context of the step that is traced, or that of evaluation


def call(model: nnx.Module, inputs: Any, context: Context) -> Any:
    """`model(inputs, context)` where the model names a `context`, else `model(inputs)`."""
    if "context" in inspect.signature(type(model).__call__).parameters:
        return model(inputs, context)
    return model(inputs)


def example_keys(seed: int, step: jax.Array, indices: jax.Array) -> jax.Array:
    """`[b]` random keys that depend on the seed, the update and the example, and not on the device."""
    key = jax.random.fold_in(jax.random.key(seed), step)
    return jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)


class Dropout(nnx.Module):
    """Dropout whose mask belongs to the example: the same on any number of devices.

    Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15, 2014.

    Args:
        rate: the probability with which an activation is set to 0; the others are scaled by 1 / (1 - rate).
        layer: a number that differs between the dropout layers of one model, so that their masks do.
    """

    def __init__(self, rate: float, *, layer: int = 0):
        self.rate, self.layer = rate, layer

    def __call__(self, x: jax.Array, context: Context) -> jax.Array:
        """`[b, ...]` to `[b, ...]`; the identity in evaluation."""
        if not context.train or self.rate == 0:
            return x
        if context.keys is None:
            raise ValueError("dropout in training needs Context.keys, one random key an example")

        def keep_mask(key: jax.Array) -> jax.Array:
            return jax.random.bernoulli(jax.random.fold_in(key, self.layer), 1 - self.rate, x.shape[1:])

        return jnp.where(jax.vmap(keep_mask)(context.keys), x / (1 - self.rate), 0).astype(x.dtype)


def max_pool(x: jax.Array) -> jax.Array:
    """Max-pooling over 2x2 windows, `[b, H, W, C]` to `[b, H // 2, W // 2, C]`: `nnx.max_pool(x, (2, 2), (2, 2))`.

    It is the maximum of the four corners of each window. XLA's gradient of `nnx.max_pool` takes more than half of a
    training step on a CPU; here it is a selection. In both the first of equal corners takes the whole gradient.
    """
    H, W = x.shape[1] // 2 * 2, x.shape[2] // 2 * 2  # an odd last row or column belongs to no window
    top, bottom = ([x[:, i:H:2, j:W:2] for j in (0, 1)] for i in (0, 1))
    return larger(larger(*top), larger(*bottom))


def larger(x: jax.Array, y: jax.Array) -> jax.Array:
    """The elementwise maximum. Equal numbers would share the gradient of `jnp.maximum`; looking for them takes time."""
    return jnp.where((y > x) | jnp.isnan(y), y, x)


def scale_pixels(images: jax.Array, dtype: DTypeLike) -> jax.Array:
    """uint8 pixels `[b, H, W, C]` to `dtype` in [0, 1]."""
    return images.astype(dtype) / 255


def with_axis_names(initializer: Callable[..., Any], *axes: str) -> Callable[..., Any]:
    """`initializer`, for a parameter whose axes have these logical names, for example `features` and `hidden`.

    A layout says over which devices an axis is split (`pmapdp/sharding/`); without one the names change nothing. Flax
    keeps them as the metadata `out_sharding`; `eager_sharding=False` because they are not names of a mesh.
    """
    return nnx.with_partitioning(initializer, axes, eager_sharding=False)


def named_linear(initializer: Callable[..., Any], inputs: str, outputs: str) -> dict[str, Any]:
    """Initialisers for `nnx.Linear`, whose kernel's axes have these names; the bias starts at 0."""
    zeros = nnx.initializers.zeros_init()
    return {"kernel_init": with_axis_names(initializer, inputs, outputs), "bias_init": with_axis_names(zeros, outputs)}
