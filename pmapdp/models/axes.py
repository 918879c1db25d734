"""Logical names for the axes of parameters: what an axis stands for. On which devices it is split is said elsewhere."""

from collections.abc import Callable
from typing import Any

from flax import nnx


def named(initializer: Callable[..., Any], *axes: str) -> Callable[..., Any]:
    """`initializer`, for a parameter whose axes have these names, for example `features` and `hidden`.

    Flax keeps them as the metadata `out_sharding` of the parameter. `eager_sharding=False` because they are not names
    of a mesh: Flax would otherwise ask for that mesh as soon as the parameter is made.
    """
    return nnx.with_partitioning(initializer, axes, eager_sharding=False)
