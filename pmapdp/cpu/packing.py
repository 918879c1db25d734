"""Collectives on a CPU take one array after the other, though XLA puts them into one operation.

Simulated devices would wait for each other once for each array (seen with jax 0.10). Accelerators exchange several
arrays at once, and are left alone. Behind the barriers the arrays are copied: without them the compiler may move what
computes an array into the concatenation, and do that work number by number (seen with jax 0.10: a step ten times as
long).
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

WHOLE = -1  # in place of an axis: the array is not cut


def packed(collective: Callable[..., Any]) -> Callable[..., Any]:
    """`collective`, which is `lax.psum` here, with all arrays of its argument in one vector where it runs on CPUs."""

    def run(tree: Any, axis_name: Any) -> Any:
        def as_vector(tree: Any) -> Any:
            vector, restore = ravel_pytree(lax.optimization_barrier(tree))
            return restore(collective(vector, axis_name))

        return lax.platform_dependent(tree, cpu=as_vector, default=lambda tree: collective(tree, axis_name))

    return run


def scattered_sums(arrays: Sequence[jax.Array], axes: Sequence[int], axis_name: str, N: int) -> list[jax.Array]:
    """The sums over N devices, of which each device gets its part.

    Args:
        arrays: of this device.
        axes: the axis along which each is cut into N parts, or `WHOLE`: every device gets all of its sum.
        axis_name: the mapped axis.
        N: its size.
    """

    def one_by_one(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        return [
            lax.psum(x, axis_name)
            if axis == WHOLE
            else lax.psum_scatter(x, axis_name, scatter_dimension=axis, tiled=True)
            for x, axis in zip(arrays, axes, strict=True)
        ]

    def as_rows(arrays: Sequence[jax.Array]) -> list[jax.Array]:
        parts = [parts_of(x, axis, N) for x, axis in zip(lax.optimization_barrier(arrays), axes, strict=True)]
        rows = jnp.concatenate([x.reshape(N, -1) for x in parts], 1)  # row d is for device d
        return cut(lax.psum_scatter(rows, axis_name), [x.shape[1:] for x in parts])

    return lax.platform_dependent(arrays, cpu=as_rows, default=one_by_one)


def gathered(parts: Sequence[jax.Array], axes: Sequence[int], axis_name: str) -> list[jax.Array]:
    """The whole arrays, from the parts of all devices along their axes."""

    def one_by_one(parts: Sequence[jax.Array]) -> list[jax.Array]:
        return [lax.all_gather(x, axis_name, axis=axis, tiled=True) for x, axis in zip(parts, axes, strict=True)]

    def as_vector(parts: Sequence[jax.Array]) -> list[jax.Array]:
        vector = jnp.concatenate([x.reshape(-1) for x in lax.optimization_barrier(parts)])
        rows = cut(lax.all_gather(vector, axis_name), [x.shape for x in parts])
        return [joined(x, axis) for x, axis in zip(rows, axes, strict=True)]

    return lax.platform_dependent(parts, cpu=as_vector, default=one_by_one)


def parts_of(x: jax.Array, axis: int, N: int) -> jax.Array:
    """`[N, ...]`, the N parts of `x` along `axis`, or N times `x` where that is `WHOLE`."""
    if axis == WHOLE:
        return jnp.broadcast_to(x, (N, *x.shape))
    return jnp.moveaxis(x.reshape(*x.shape[:axis], N, -1, *x.shape[axis + 1 :]), axis, 0)


def joined(parts: jax.Array, axis: int) -> jax.Array:
    """The array whose `parts_of` these are."""
    parts = jnp.moveaxis(parts, 0, axis)
    return parts.reshape(*parts.shape[:axis], -1, *parts.shape[axis + 2 :])


def cut(rows: jax.Array, shapes: Sequence[Sequence[int]]) -> list[jax.Array]:
    """Arrays `[..., *shape]`, one behind the other in the last axis of `rows`."""
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
    pieces = jnp.split(rows, ends[:-1], axis=-1)
    return [piece.reshape(*rows.shape[:-1], *shape) for piece, shape in zip(pieces, shapes, strict=True)]
