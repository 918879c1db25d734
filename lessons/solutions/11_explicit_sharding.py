"""Solutions of lesson 11's exercises."""

import jax
import jax.numpy as jnp
from jax import P


def typed(function, x):
    """Tracing is enough: shardings are part of types."""
    return jax.eval_shape(function, x).sharding.spec


def fixed_gram(x):
    """The product sums over the examples, which are split: replicated means an all-reduce."""
    return jnp.matmul(x.T, x, out_sharding=P())


def normalized_step(w, x, y):
    """The moments are over the global batch by themselves, because x is the global batch."""
    assert jax.typeof(x).sharding.spec[0] == "data", f"the batch is not split: {jax.typeof(x)}"
    z = (x - x.mean(0)) / x.std(0)
    return w - 0.1 * jax.grad(lambda w: jnp.square(z @ w - y).mean())(w)
