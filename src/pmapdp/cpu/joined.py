"""XLA on a CPU exchanges one array after the other. Here those that are known when the first is due travel together."""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from pmapdp.cpu.program import Equation, Evaluation, rewritten


def by_device(x: jax.Array, params: dict[str, Any]) -> jax.Array:
    """`[N, n]`: row d is the shard for device d."""
    N, axis = params["axis_size"], params["scatter_dimension"]
    return jnp.moveaxis(x.reshape(*x.shape[:axis], N, -1, *x.shape[axis + 1 :]), axis, 0).reshape(N, -1)


def side_by_side(rows: jax.Array, params: dict[str, Any], shape: tuple[int, ...]) -> jax.Array:
    """`[N, n]`, the shards of all devices, one behind the other along their axis."""
    N, axis = params["axis_size"], params["all_gather_dimension"]
    return jnp.moveaxis(rows.reshape(N, *shape[:axis], -1, *shape[axis + 1 :]), 0, axis).reshape(shape)


class Way(NamedTuple):
    """How arrays travel: from each to rows, whose last axes are joined; all at once; and from rows to results. `free`
    is the parameter in which their collectives may differ."""

    exchange: Callable[..., jax.Array]
    rows: Callable[..., jax.Array] = lambda x, _: x.reshape(-1)
    result: Callable[..., jax.Array] = lambda rows, _, shape: rows.reshape(shape)
    free: str = ""


WAYS = {
    "psum": Way(lax.psum),  # also those in `lax.pmean`
    "reduce_scatter": Way(lax.psum_scatter, rows=by_device, free="scatter_dimension"),
    "all_gather": Way(lax.all_gather, result=side_by_side, free="all_gather_dimension"),
}


def join_collectives(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, in whose `pmap` or `shard_map` neighbouring collectives of one kind are one."""
    return rewritten(function, {name: functools.partial(join, way) for name, way in WAYS.items()})


def join(way: Way, evaluation: Evaluation, first: Equation, _: Sequence[Any]) -> Sequence[Any] | None:
    """`first` and those like it, on arrays of its type, whose inputs are known."""

    def kind(equation: Equation) -> tuple[Any, ...]:
        params = {name: value for name, value in equation.params.items() if name != way.free}
        return equation.invars[0].aval.dtype, str(params)

    group = [each for each in evaluation.due(first.primitive) if kind(each) == kind(first)]
    if len(group) == 1 or first.params["axis_index_groups"] is not None or not first.params.get("tiled", True):
        return None
    rows = [way.rows(evaluation.read(each.invars[0]), each.params) for each in group]
    ends = list(itertools.accumulate(x.shape[-1] for x in rows))
    whole = jnp.zeros((*rows[0].shape[:-1], ends[-1]), rows[0].dtype)
    # Not a concatenation: XLA may move what computes an array into it, and do that number by number, ten times as long.
    for x, end in zip(rows, ends, strict=True):
        whole = lax.dynamic_update_slice_in_dim(whole, x, end - x.shape[-1], -1)
    exchanged = way.exchange(whole, first.params.get("axes") or first.params["axis_name"])
    pieces = jnp.split(exchanged, ends[:-1], -1)
    for each, piece in zip(group, pieces, strict=True):
        evaluation.write(each, [way.result(piece, each.params, each.outvars[0].aval.shape)])
    return [evaluation.read(first.outvars[0])]
