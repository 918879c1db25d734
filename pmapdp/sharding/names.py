"""What a model says of the axes of its arrays.

A model names the axes of its parameters (`axes` in `models/__init__.py`): the kernel `[784, 512]` of a linear
layer has the axes `features` and `hidden`. A layout has rules for such names. Lesson 15 teaches this file.
"""

from dataclasses import dataclass
from typing import Any

import jax
from flax import nnx

from pmapdp.sharding.notation import Rules
from pmapdp.state import Task


@dataclass(frozen=True)
class Axes:
    """Logical names and sizes of the axes of an array; an axis with the name None is never split."""

    names: tuple[str | None, ...]
    shape: tuple[int, ...]


def logical_axes(task: Task) -> tuple[Any, Any, Rules]:
    """The `Axes` of the parameters and of the model's other arrays, each nested as those are, and the rules that stand
    in the model itself (Flax's metadata `sharding_rules`)."""
    rules: Rules = {}

    def axes_of(leaf: Any) -> Axes:
        if not isinstance(leaf, nnx.Variable):  # an array that the model keeps
            return Axes((None,) * leaf.ndim, leaf.shape)
        rules.update({name: tuple(jax.tree.leaves(axes)) for name, axes in leaf.get_metadata("sharding_rules", ())})
        shape = leaf.get_value().shape
        return Axes(tuple(leaf.get_metadata("out_sharding", None) or (None,) * len(shape)), shape)

    def of(arrays: Any) -> Any:
        return nnx.to_pure_dict(jax.tree.map(axes_of, arrays, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)))

    params, _, model_state = nnx.state(task.model, task.trainable, nnx.RngState, ...)
    return of(params), of(model_state), rules
