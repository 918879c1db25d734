"""Answers to the exercises of lesson 11; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
from jax import P, lax


def without_assert(w, x, y):
    z = (x - x.mean(0)) / x.std(0)
    return w - 0.1 * jax.grad(lambda w: jnp.square(z @ w - y).mean())(w)


def not_normalized(w, x, y):
    assert jax.typeof(x).sharding.spec[0] == "data"
    return w - 0.1 * jax.grad(lambda w: jnp.square(x @ w - y).mean())(w)


def moments_of_each_device(w, x, y):
    assert jax.typeof(x).sharding.spec[0] == "data"
    z = jax.shard_map(lambda x: (x - x.mean(0)) / x.std(0), in_specs=P("data"), out_specs=P("data"))(x)
    return w - 0.1 * jax.grad(lambda w: jnp.square(z @ w - y).mean())(w)


def gradient_by_hand(w, x, y):
    if jax.typeof(x).sharding.spec[0] != "data":
        raise AssertionError("the batch is not split")
    z = (x - x.mean(0, keepdims=True)) / jnp.sqrt(x.var(0))
    return w - 0.2 * jnp.einsum("bd,b->d", z, z @ w - y, out_sharding=P()) / len(y)


def not_replicated_is_split(w, x, y):
    assert not jax.typeof(x).sharding.is_fully_replicated

    def loss(w):
        z = (x - jnp.mean(x, 0)) / jnp.std(x, 0)
        return ((z @ w - y) ** 2).sum() / y.shape[0]

    return w - 0.1 * jax.value_and_grad(loss)(w)[1]


def gathers(x):
    x = jax.reshard(x, P())
    return x.T @ x


def by_shard_map(reduce):
    def answer(x):
        mapped = jax.shard_map(lambda x: reduce(x.T @ x), in_specs=P("data"), out_specs=P(), check_vma=False)
        return mapped(x)

    return answer


WRONG = {
    "typed": [
        ("trace it only", lambda function, x: jax.typeof(function(x)).sharding.spec),
        ("the spec of x.T", lambda function, x: x.sharding.spec),
        ("return a PartitionSpec", lambda function, x: jax.eval_shape(function, x)),
        ("the spec of x.sum(0)", lambda function, x: P(*(None, "data")[2 - jax.eval_shape(function, x).ndim :])),
    ],
    "fixed_gram": [
        ("your code raised ShardingTypeError", lambda x: x.T @ x),
        ("not those of x.T @ x", lambda x: gathers(x) + 1),
        ("every device gets the rows of all others", gathers),
        ("not those of x.T @ x", by_shard_map(lambda gram: gram)),
        ("not those of x.T @ x", by_shard_map(lambda gram: lax.pmean(gram, "data"))),
    ],
    "normalized_step": [
        ("a batch that is not split was accepted", without_assert),
        ("yours is", not_normalized),
        ("yours is", moments_of_each_device),
    ],
}

RIGHT = {
    "typed": [
        lambda function, x: jax.jit(function).lower(x).out_info.sharding.spec,
        lambda function, x: jax.make_jaxpr(function)(x).out_avals[0].sharding.spec,
    ],
    "fixed_gram": [
        by_shard_map(lambda gram: lax.psum(gram, "data")),
        lambda x: jnp.einsum("bi,bj->ij", x, x, out_sharding=P()),
    ],
    "normalized_step": [gradient_by_hand, not_replicated_is_split],
}
