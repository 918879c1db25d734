"""Answers to the exercises of lesson 11; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
from jax import P


def without_assert(w, x, y):
    z = (x - x.mean(0)) / x.std(0)
    return w - 0.1 * jax.grad(lambda w: jnp.square(z @ w - y).mean())(w)


def not_normalized(w, x, y):
    assert jax.typeof(x).sharding.spec[0] == "data"
    return w - 0.1 * jax.grad(lambda w: jnp.square(x @ w - y).mean())(w)


WRONG = {
    "typed": [
        ("trace it only", lambda function, x: jax.typeof(function(x)).sharding.spec),
        ("the spec of x.T", lambda function, x: x.sharding.spec),
        ("return a PartitionSpec", lambda function, x: jax.eval_shape(function, x)),
    ],
    "mended_gram": [
        ("your code raised ShardingTypeError", lambda x: x.T @ x),
        ("not those of x.T @ x", lambda x: jnp.matmul(jax.reshard(x, P()).T, jax.reshard(x, P())) + 1),
    ],
    "normalized_step": [
        ("a batch that is not split was accepted", without_assert),
        ("yours is", not_normalized),
    ],
}

RIGHT = {}
