"""The names of an array's axes: what a model says of them, and how rules for names split the array.

A model names the axes of its parameters (`models/axes.py`): the kernel `[784, 512]` of a linear layer has the axes
`features` and `hidden`. Rules map such names to axes of a mesh, for example hidden -> model. Names without a rule are
not split. Lesson 11 teaches this file.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from jax.sharding import PartitionSpec

from pmapdp.sharding.notation import Rules
from pmapdp.state import Task

Names = tuple[str | None, ...]


class IndivisibleError(Exception):
    """An axis of an array cannot be cut into so many equal shards; the arguments are its name, size and mesh axes."""


def partition(
    names: Names, shape: Sequence[int], sizes: dict[str, int], rules: Rules, more: tuple[str, ...] = ()
) -> PartitionSpec:
    """How an array of this shape is split: for each of its axes the mesh axes of its logical name, or an
    `IndivisibleError`. The name None is never split. The mesh axes in `more` split the first axis which they divide as
    well; an array that has none stays as it is."""

    def number(axes: tuple[str, ...]) -> int:
        return math.prod(sizes[axis] for axis in axes)

    entries = [rules.get(name or "", ()) for name in names]
    for name, size, axes in zip(names, shape, entries, strict=True):
        if size % number(axes):
            raise IndivisibleError(name, size, axes)
    each = [size // number(axes) for size, axes in zip(shape, entries, strict=True)]
    first = next((axis for axis, size in enumerate(each) if more and size and size % number(more) == 0), None)
    if first is not None:
        entries[first] = (*entries[first], *more)
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in entries))


def logical_names(task: Task) -> tuple[Any, Any, dict[str, tuple[str, ...]]]:
    """What a model says of its axes, without making its arrays: names of the parameters' axes and of the running
    statistics' (both nested as those are), and rules that stand in the model itself (Flax' metadata `sharding_rules`).
    """
    model = nnx.eval_shape(task.build_model)
    rules: dict[str, tuple[str, ...]] = {}

    def names(variable: nnx.Variable) -> Names:
        for name, axes in variable.get_metadata("sharding_rules", ()):
            rules[name] = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
        return tuple(variable.get_metadata("out_sharding", None) or (None,) * len(variable.get_value().shape))

    def of(kind: type[nnx.Variable]) -> Any:
        return nnx.to_pure_dict(
            jax.tree.map(names, nnx.state(model, kind), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable))
        )

    return of(nnx.Param), of(nnx.BatchStat), rules
