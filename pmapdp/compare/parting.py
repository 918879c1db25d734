"""Small programs in which the ways part: what one device computes, and jit as it is; and the lines of one of many.

A program takes the parameters, a batch (`x` [b, D], `y` [b], `index` [b] and `weight` [b]) and a key, and returns the
loss and its gradient. Those with a collective run under pmap and shard_map over the axis "data". `parted.py` runs all,
with the cases of `cases.py`.
"""
# mypy: allow-untyped-defs, allow-untyped-calls
# ruff: noqa: D103  # the name of a program is what it shows

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Program = Callable[[Any, Any, Any], tuple[Any, Any]]


def error(params: Any, hidden: Any, batch: Any) -> Any:
    """The squared error of every example, `[b]`."""
    return jnp.square(jnp.tanh(hidden) @ params["W2"] - batch["y"])


def plain(params, batch, key):
    def loss(params):
        return error(params, batch["x"] @ params["W1"], batch).mean()

    return jax.value_and_grad(loss)(params)


def averaged(params, batch, key):
    return lax.pmean(plain(params, batch, key), "data")


def batch_norm(params, batch, key):
    def loss(params):
        hidden = batch["x"] @ params["W1"]
        mean, square = hidden.mean(0), jnp.square(hidden).mean(0)
        hidden = (hidden - mean) / jnp.sqrt(square - mean**2 + 1e-3)
        return error(params, hidden, batch).mean()

    return jax.value_and_grad(loss)(params)


def local_moments(params, batch, key):
    return lax.pmean(batch_norm(params, batch, key), "data")


def synchronized_moments(params, batch, key):
    def loss(params):
        hidden = batch["x"] @ params["W1"]
        mean, square = lax.pmean((hidden.mean(0), jnp.square(hidden).mean(0)), "data")
        hidden = (hidden - mean) / jnp.sqrt(square - mean**2 + 1e-3)
        return error(params, hidden, batch).mean()

    return lax.pmean(jax.value_and_grad(loss)(params), "data")


def dropout(params, batch, key):
    def loss(params):
        hidden = batch["x"] @ params["W1"]
        mask = jax.random.bernoulli(key, 0.5, hidden.shape)
        return error(params, 2 * mask * hidden, batch).mean()

    return jax.value_and_grad(loss)(params)


def one_key(params, batch, key):
    return lax.pmean(dropout(params, batch, key), "data")


def folded_key(params, batch, key):
    key = jax.random.fold_in(key, lax.axis_index("data"))
    return lax.pmean(dropout(params, batch, key), "data")


def dropout_by_example(params, batch, key):
    keys = jax.vmap(functools.partial(jax.random.fold_in, key))(batch["index"])

    def loss(params):
        hidden = batch["x"] @ params["W1"]
        mask = jax.vmap(lambda key: jax.random.bernoulli(key, 0.5, hidden.shape[1:]))(keys)
        return error(params, 2 * mask * hidden, batch).mean()

    return jax.value_and_grad(loss)(params)


def key_of_the_example(params, batch, key):
    return lax.pmean(dropout_by_example(params, batch, key), "data")


def accumulation(params, batch, key):
    halves = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch)
    first = plain(params, jax.tree.map(lambda x: x[0], halves), key)
    second = plain(params, jax.tree.map(lambda x: x[1], halves), key)
    return jax.tree.map(lambda a, b: (a + b) / 2, first, second)


def averaged_in_each(params, batch, key):
    halves = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch)
    first = lax.pmean(plain(params, jax.tree.map(lambda x: x[0], halves), key), "data")
    second = lax.pmean(plain(params, jax.tree.map(lambda x: x[1], halves), key), "data")
    return jax.tree.map(lambda a, b: (a + b) / 2, first, second)


def averaged_once(params, batch, key):
    return lax.pmean(accumulation(params, batch, key), "data")


def clipped(gradient: Any) -> Any:
    """A gradient that is at most 0.1 long."""
    length = jnp.sqrt(sum(jnp.square(leaf).sum() for leaf in jax.tree.leaves(gradient)))
    return jax.tree.map(lambda leaf: leaf * jnp.minimum(1, 0.1 / length), gradient)


def clipping(params, batch, key):
    value, gradient = plain(params, batch, key)
    return value, clipped(gradient)


def clipped_before_the_average(params, batch, key):
    value, gradient = plain(params, batch, key)
    return lax.pmean((value, clipped(gradient)), "data")


def clipped_after_the_average(params, batch, key):
    value, gradient = lax.pmean(plain(params, batch, key), "data")
    return value, clipped(gradient)


def ragged_batch(params, batch, key):
    def loss(params):
        errors = error(params, batch["x"] @ params["W1"], batch)
        return (batch["weight"] * errors).sum() / batch["weight"].sum()

    return jax.value_and_grad(loss)(params)


def mean_of_means(params, batch, key):
    return lax.pmean(ragged_batch(params, batch, key), "data")


def sum_over_count(params, batch, key):
    def loss(params):
        errors = error(params, batch["x"] @ params["W1"], batch)
        return (batch["weight"] * errors).sum()

    found, count = lax.psum((jax.value_and_grad(loss)(params), batch["weight"].sum()), "data")
    return jax.tree.map(lambda x: x / count, found)


def metric_not_averaged(params, batch, key):
    value, gradient = plain(params, batch, key)
    return value, lax.pmean(gradient, "data")
