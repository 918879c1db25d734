"""Convolution by matrix products against XLA's own, in float64: values and both gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pmapdp.models.convolution import convolve

LAYOUT = ("NHWC", "HWIO", "NHWC")


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(
    ("images", "kernel", "stride", "padding", "product"),
    [
        ((3, 28, 28, 1), (3, 3, 1, 32), 1, "VALID", True),  # cnn
        ((3, 28, 28, 1), (3, 3, 1, 12), 1, "SAME", True),  # convnet
        ((3, 28, 28, 12), (6, 6, 12, 24), 2, "VALID", True),
        ((3, 12, 12, 24), (6, 6, 24, 32), 2, "SAME", True),
        ((2, 10, 8, 3), (3, 3, 3, 5), 1, "SAME", True),
        ((2, 9, 8, 3), (3, 3, 3, 5), 1, "SAME", False),  # an odd number of rows: XLA's
        ((2, 9, 9, 3), (5, 5, 3, 4), 2, "SAME", False),
    ],
)
def test_values_and_gradients_are_those_of_xla(float64, images, kernel, stride, padding, product):
    random = np.random.default_rng(0)
    x, k = random.normal(size=images), random.normal(size=kernel)

    def ours(x, k):
        return convolve(x, k, (stride, stride), padding, dimension_numbers=LAYOUT)

    def theirs(x, k):
        return lax.conv_general_dilated(x, k, (stride, stride), padding, dimension_numbers=LAYOUT)

    wanted, their_gradients = jax.vjp(theirs, x, k)
    found, our_gradients = jax.vjp(ours, x, k)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
    weights = random.normal(size=wanted.shape)
    for mine, other in zip(our_gradients(weights), their_gradients(weights), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-12 * np.abs(other).max())
    compiled = jax.jit(ours).lower(x, k).compile().as_text()
    assert ("convolution(" not in compiled) == product


def test_bfloat16_stays_with_xla():
    x, k = jnp.ones((2, 12, 12, 4), jnp.bfloat16), jnp.ones((6, 6, 4, 8), jnp.bfloat16)
    found = convolve(x, k, (2, 2), "VALID", dimension_numbers=LAYOUT)
    np.testing.assert_array_equal(np.asarray(found, np.float32), 144.0)
