"""Solutions of lesson 11's exercises."""

import jax
import jax.numpy as jnp
from jax import P


def result_spec(function, x):
    """The PartitionSpec of function(x)."""
    # Tracing is enough: shardings are part of types.
    return jax.eval_shape(function, x).sharding.spec


def fixed_gram(x):
    """[D, D], replicated."""
    # The product adds up over the examples, which are split. A replicated result takes an all-reduce.
    return jnp.matmul(x.T, x, out_sharding=P())


def normalized_step(w, x, y):
    """The new w [D]."""
    assert jax.typeof(x).sharding.spec[0] == "data", f"the batch is not split: {jax.typeof(x)}"
    z = (x - x.mean(0)) / x.std(0)  # x is the global batch, so these are its moments
    return w - 0.1 * jax.grad(lambda w: jnp.square(z @ w - y).mean())(w)
