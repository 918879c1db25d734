"""Collectives on a CPU take one array after the other, though XLA puts them into one operation.

Simulated devices would wait for each other once for each array. Here neighbours, whose inputs are all known when the
first is due, travel as one vector.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from pmapdp.cpu.program import Evaluation, rewritten, shape_of

Params = dict[str, Any]


class Way(NamedTuple):
    """How arrays travel together. `params` are those of an array's own collective.

    Attributes:
        rows: (array, params) to `[n]`, or to `[N, n]` with a row for each device.
        exchange: (the rows of all arrays, one behind the other, params) to the same of the results.
        result: (its rows, params, shape) to an array's result.
        free: the parameter in which neighbours may differ.
    """

    rows: Callable[[jax.Array, Params], jax.Array]
    exchange: Callable[[jax.Array, Params], jax.Array]
    result: Callable[[jax.Array, Params, tuple[int, ...]], jax.Array]
    free: str = ""


def shards(x: jax.Array, params: Params) -> jax.Array:
    """Row d holds the shard for device d."""
    N, axis = params["axis_size"], params["scatter_dimension"]
    return jnp.moveaxis(x.reshape(*x.shape[:axis], N, -1, *x.shape[axis + 1 :]), axis, 0).reshape(N, -1)


def side_by_side(rows: jax.Array, params: Params, shape: tuple[int, ...]) -> jax.Array:
    """The shards of all devices, one behind the other along their axis."""
    N, axis = params["axis_size"], params["all_gather_dimension"]
    return jnp.moveaxis(rows.reshape(N, *shape[:axis], -1, *shape[axis + 1 :]), 0, axis).reshape(shape)


WAYS = {
    "psum": Way(  # also those in `lax.pmean`
        lambda x, _: x.reshape(-1),
        lambda rows, params: lax.psum(rows, params["axes"]),
        lambda x, _, shape: x.reshape(shape),
    ),
    "reduce_scatter": Way(
        shards,
        lambda rows, params: lax.psum_scatter(rows, params["axis_name"]),
        lambda x, _, shape: x.reshape(shape),
        "scatter_dimension",
    ),
    "all_gather": Way(
        lambda x, _: x.reshape(-1),
        lambda rows, params: lax.all_gather(rows, params["axis_name"]),
        side_by_side,
        "all_gather_dimension",
    ),
}


def join_collectives(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, in whose `pmap` or `shard_map` neighbouring collectives of one kind are one."""
    return rewritten(function, {name: functools.partial(join, way) for name, way in WAYS.items()})


def join(way: Way, evaluation: Evaluation, first: core.JaxprEqn, _: Sequence[Any]) -> Sequence[Any] | None:
    """`first` and those like it, on arrays of its type, whose inputs are known."""

    def kind(equation: core.JaxprEqn) -> tuple[Any, ...]:
        params = {name: value for name, value in equation.params.items() if name != way.free}
        return shape_of(equation.invars[0]).dtype, str(params)

    due = [each for each in evaluation.due() if each.primitive is first.primitive]
    group = [each for each in due if kind(each) == kind(first)]
    if len(group) == 1 or first.params["axis_index_groups"] is not None or not first.params.get("tiled", True):
        return None
    # Behind the barrier they are copied: without it the compiler may move what computes an array into the
    # concatenation, and do that work number by number (seen with jax 0.10: a step ten times as long).
    arrays = lax.optimization_barrier([evaluation.read(each.invars[0]) for each in group])
    rows = [way.rows(x, each.params) for x, each in zip(arrays, group, strict=True)]
    ends = list(itertools.accumulate(x.shape[-1] for x in rows))
    pieces = jnp.split(way.exchange(jnp.concatenate(rows, -1), first.params), ends[:-1], -1)
    results = [
        way.result(piece, each.params, shape_of(each.outvars[0]).shape)
        for piece, each in zip(pieces, group, strict=True)
    ]
    for each, result in zip(group, results, strict=True):
        evaluation.write(each, [result])
    return results[:1]
