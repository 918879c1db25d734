"""What a model says of the axes of its arrays.

A model names the axes of its parameters (`named_linear` in `models/layers.py`): the kernel `[784, 512]` of a linear
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
    """The `Axes` of the parameters and of the running statistics, each nested as those are, and the rules that stand in
    the model itself (Flax's metadata `sharding_rules`). No array is made."""
    model = nnx.eval_shape(task.build_model)
    rules: Rules = {}

    def axes_of(variable: nnx.Variable) -> Axes:
        rules.update({name: tuple(jax.tree.leaves(axes)) for name, axes in variable.get_metadata("sharding_rules", ())})
        shape = variable.get_value().shape
        return Axes(tuple(variable.get_metadata("out_sharding", None) or (None,) * len(shape)), shape)

    def of(kind: type[nnx.Variable]) -> Any:
        variables = nnx.state(model, kind)
        return nnx.to_pure_dict(jax.tree.map(axes_of, variables, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)))

    return of(nnx.Param), of(nnx.BatchStat), rules
