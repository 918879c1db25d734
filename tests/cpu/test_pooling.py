"""Max-pooling for CPUs against XLA's own: values and gradients, also of equal numbers and NaN, number by number."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pmapdp.cpu.convolution import faster


def pool(x):
    return nnx.max_pool(x, (2, 2), strides=(2, 2))


def assert_equal_pooling(x):
    """Values and gradients are equal, and there is no pooling of XLA's left."""
    x = jnp.asarray(x)
    (wanted, their_gradient), (found, our_gradient) = jax.vjp(pool, x), jax.vjp(faster(pool), x)
    np.testing.assert_array_equal(found, wanted)
    weights = jnp.asarray(np.random.default_rng(0).normal(size=wanted.shape), wanted.dtype)
    np.testing.assert_array_equal(our_gradient(weights)[0], their_gradient(weights)[0])
    assert "reduce_window" not in str(jax.make_jaxpr(faster(pool))(x))


@pytest.mark.parametrize("shape", [(2, 26, 26, 3), (2, 7, 6, 3), (1, 6, 7, 2), (3, 5, 5, 1), (1, 2, 3, 1)])
def test_different_numbers(shape):
    assert_equal_pooling(np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape).astype(np.float32))


def test_the_first_of_equal_numbers_takes_the_gradient():
    assert_equal_pooling(np.random.default_rng(0).integers(0, 2, (4, 16, 16, 3)).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_nan_and_infinity(dtype):
    x = np.random.default_rng(0).choice([np.nan, -np.inf, np.inf, -0.0, 0.0, 1.0], (4, 16, 16, 3))
    x = jnp.asarray(x, dtype)
    found, wanted = (np.asarray(each, np.float32) for each in (faster(pool)(x), pool(x)))
    np.testing.assert_array_equal(found, wanted)
    assert np.isnan(found).any()


@pytest.mark.parametrize(
    ("window", "strides", "padding"), [((3, 3), (2, 2), "VALID"), ((2, 2), (1, 1), "VALID"), ((2, 2), (2, 2), "SAME")]
)
def test_other_windows_stay_with_xla_or_equal_it(window, strides, padding):
    def function(x):
        return nnx.max_pool(x, window, strides, padding)

    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 7, 6, 3)), jnp.float32)
    (wanted, their_gradient), (found, our_gradient) = jax.vjp(function, x), jax.vjp(faster(function), x)
    np.testing.assert_array_equal(found, wanted)
    weights = jnp.ones_like(wanted)
    np.testing.assert_array_equal(our_gradient(weights)[0], their_gradient(weights)[0])


def test_average_pooling_is_left_alone():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 8, 8, 3)), jnp.float32)

    def function(x):
        return nnx.avg_pool(x, (2, 2), strides=(2, 2))

    assert str(jax.make_jaxpr(faster(function))(x)) == str(jax.make_jaxpr(function)(x))
