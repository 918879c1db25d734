"""Collectives on a CPU take one array after the other, though XLA puts them into one operation.

Simulated devices would wait for each other once for each array. Here neighbours, whose inputs are all known when the
first is due, travel as one vector.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from pmapdp.cpu.program import Evaluation, rewritten, shape_of


def join_collectives(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, in whose `pmap` or `shard_map` neighbouring collectives of one kind are one."""
    return rewritten(function, {"psum": all_reduce, "reduce_scatter": reduce_scatter, "all_gather": all_gather})


def neighbours(evaluation: Evaluation, first: core.JaxprEqn, free: Sequence[str]) -> list[core.JaxprEqn]:
    """The equations like `first`, on arrays of its type, whose inputs are known; `free` parameters may differ."""

    def kind(equation: core.JaxprEqn) -> tuple[Any, ...]:
        params = {name: value for name, value in equation.params.items() if name not in free}
        return equation.primitive.name, str(params), {str(shape_of(variable).dtype) for variable in equation.invars}

    return [
        equation
        for equation in evaluation.equations
        if id(equation) not in evaluation.computed
        and equation.primitive is first.primitive
        and kind(equation) == kind(first)
        and all(evaluation.known(variable) for variable in equation.invars)
    ]


def finish(evaluation: Evaluation, group: Sequence[core.JaxprEqn], arrays: Sequence[jax.Array]) -> list[jax.Array]:
    """Hand out the results of a group; those of its first equation are returned too."""
    rest = iter(arrays)
    results = [list(itertools.islice(rest, len(equation.outvars))) for equation in group]
    for equation, outputs in zip(group, results, strict=True):
        evaluation.write(equation, outputs)
    return results[0]


def copies(evaluation: Evaluation, group: Sequence[core.JaxprEqn]) -> list[jax.Array]:
    """The inputs of a group. Behind the barrier they are copied: without it the compiler may move what computes an
    array into the concatenation, and do that work number by number (seen with jax 0.10: a step ten times as long)."""
    return lax.optimization_barrier([evaluation.read(variable) for equation in group for variable in equation.invars])


def all_reduce(evaluation: Evaluation, equation: core.JaxprEqn, _: Sequence[Any]) -> Sequence[Any] | None:
    """Neighbouring `lax.psum`, also those in `lax.pmean`."""
    group = neighbours(evaluation, equation, ())
    if len(group) == 1 or equation.params["axis_index_groups"] is not None:
        return None
    arrays = copies(evaluation, group)
    vector = lax.psum(jnp.concatenate([x.reshape(-1) for x in arrays]), equation.params["axes"])
    return finish(evaluation, group, cut(vector, [x.shape for x in arrays]))


def reduce_scatter(evaluation: Evaluation, equation: core.JaxprEqn, _: Sequence[Any]) -> Sequence[Any] | None:
    """Neighbouring `lax.psum_scatter(..., tiled=True)`, along any axes."""
    group, params = neighbours(evaluation, equation, ("scatter_dimension",)), equation.params
    if len(group) == 1 or not params["tiled"] or params["axis_index_groups"] is not None:
        return None
    N = params["axis_size"]
    shards = [
        jnp.moveaxis(x.reshape(*x.shape[:d], N, -1, *x.shape[d + 1 :]), d, 0)
        for x, d in zip(copies(evaluation, group), [each.params["scatter_dimension"] for each in group], strict=True)
    ]
    rows = jnp.concatenate([x.reshape(N, -1) for x in shards], 1)  # row d is for device d
    return finish(evaluation, group, cut(lax.psum_scatter(rows, params["axis_name"]), [x.shape[1:] for x in shards]))


def all_gather(evaluation: Evaluation, equation: core.JaxprEqn, _: Sequence[Any]) -> Sequence[Any] | None:
    """Neighbouring `lax.all_gather(..., tiled=True)`, along any axes."""
    group, params = neighbours(evaluation, equation, ("all_gather_dimension",)), equation.params
    if len(group) == 1 or not params["tiled"] or params["axis_index_groups"] is not None:
        return None
    arrays = copies(evaluation, group)
    rows = lax.all_gather(jnp.concatenate([x.reshape(-1) for x in arrays]), params["axis_name"])
    shards = [
        jnp.moveaxis(x, 0, d)
        for x, d in zip(
            cut(rows, [x.shape for x in arrays]), [each.params["all_gather_dimension"] for each in group], strict=True
        )
    ]
    whole = [shape_of(each).shape for equation in group for each in equation.outvars]
    return finish(evaluation, group, [x.reshape(shape) for x, shape in zip(shards, whole, strict=True)])


def cut(rows: jax.Array, shapes: Sequence[Sequence[int]]) -> list[jax.Array]:
    """Arrays `[..., *shape]`, one behind the other in the last axis of `rows`."""
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
    pieces = jnp.split(rows, ends[:-1], axis=-1)
    return [piece.reshape(*rows.shape[:-1], *shape) for piece, shape in zip(pieces, shapes, strict=True)]
