"""`max_pool` against Flax's, which is XLA's: values and gradients, also of equal numbers and NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pmapdp.models.layers import max_pool


def flax_max_pool(x):
    return nnx.max_pool(x, (2, 2), strides=(2, 2))


SHAPES = [(2, 26, 26, 3), (2, 7, 6, 3), (1, 6, 7, 2), (3, 5, 5, 1), (1, 2, 3, 1), (2, 1, 4, 2)]


def assert_equal_pooling(x):
    x = jnp.asarray(x, jnp.float32)
    (wanted, their_gradient), (found, our_gradient) = jax.vjp(flax_max_pool, x), jax.vjp(max_pool, x)
    np.testing.assert_array_equal(found, wanted)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=wanted.shape), jnp.float32)
    np.testing.assert_array_equal(our_gradient(weights)[0], their_gradient(weights)[0])


@pytest.mark.parametrize("shape", SHAPES)
def test_different_numbers(shape):
    assert_equal_pooling(np.random.default_rng(0).permutation(np.prod(shape)).reshape(shape))


def test_the_first_of_equal_numbers_takes_the_gradient():
    assert_equal_pooling(np.random.default_rng(0).integers(0, 2, (4, 16, 17, 3)))
    gradient = jax.grad(lambda x: max_pool(x).sum())(jnp.ones((1, 2, 2, 1)))
    np.testing.assert_array_equal(gradient[0, :, :, 0], [[1, 0], [0, 0]])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_infinity_and_nan(dtype):
    x = np.random.default_rng(0).choice([np.nan, -np.inf, np.inf, -0.0, 0.0, 1.0], (4, 16, 16, 3))
    found, wanted = max_pool(jnp.asarray(x, dtype)), flax_max_pool(jnp.asarray(x, dtype))
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(np.asarray(found, np.float32), np.asarray(wanted, np.float32))
    assert np.isnan(np.asarray(found, np.float32)).any()


def test_pooling_before_and_after_a_relu_is_equal():
    """Gradients too, where no number is 0."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 9, 8, 5)), jnp.float32)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(3, 4, 4, 5)), jnp.float32)
    one, other = (lambda x: (weights * nnx.relu(max_pool(x))).sum(), lambda x: (weights * max_pool(nnx.relu(x))).sum())
    for found, wanted in zip(jax.value_and_grad(one)(x), jax.value_and_grad(other)(x), strict=True):
        np.testing.assert_array_equal(found, wanted)
