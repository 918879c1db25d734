"""Convolutions rewritten for the CPU against XLA's own, in float64: values and both gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax
from marks import quick

from pmapdp.cpu.convolution import LAYOUT, faster
from pmapdp.models.layers import max_pool


def convolve(x, k, stride=1, padding="VALID"):
    return lax.conv_general_dilated(x, k, (stride, stride), padding, dimension_numbers=LAYOUT)


def assert_same_values_and_gradients(function, *inputs):
    """Of `function` and of the faster one, in float64; each number within 1e-12 of the largest."""
    (wanted, their_gradients), (found, our_gradients) = jax.vjp(function, *inputs), jax.vjp(faster(function), *inputs)
    weights = np.random.default_rng(1).normal(size=wanted.shape)
    for ours, theirs in zip((found, *our_gradients(weights)), (wanted, *their_gradients(weights)), strict=True):
        assert ours.dtype == theirs.dtype == jnp.float64
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max(initial=0))


def convolutions(function, *inputs):
    """How many XLA computes."""
    return jax.jit(function).lower(*inputs).as_text().count("stablehlo.convolution")


@quick(
    1,
    ("images", "kernel", "stride", "padding", "rewritten"),
    [
        ((8, 14, 14, 48), (3, 3, 48, 24), 1, "VALID", True),  # convnet
        ((8, 8, 8, 96), (3, 3, 96, 32), 1, "VALID", True),  # convnet
        ((8, 12, 12, 24), (3, 3, 24, 32), 1, "VALID", True),  # speedrun
        ((7, 10, 8, 3), (3, 3, 3, 5), 1, "SAME", False),  # few examples
        ((8, 28, 28, 1), (3, 3, 1, 12), 1, "SAME", False),  # one channel
        ((8, 3, 4, 3), (3, 3, 3, 5), 1, "VALID", False),  # 1x2 pixels: a tile would multiply more
        ((8, 4, 5, 3), (3, 3, 3, 5), 1, "VALID", True),  # a tile that reaches beyond the image
        ((8, 8, 4, 3), (3, 3, 3, 5), 1, "SAME", True),  # one tile in a row
        ((32, 9, 8, 3), (3, 3, 3, 5), 1, "SAME", True),  # tiles that reach beyond the image
        ((32, 9, 9, 3), (5, 5, 3, 4), 2, "SAME", False),
        ((8, 9, 9, 3), (3, 3, 3, 4), 2, "VALID", False),
    ],
)
def test_values_and_gradients_are_those_of_xla(float64, images, kernel, stride, padding, rewritten):
    random = np.random.default_rng(0)
    x, k = random.normal(size=images), random.normal(size=kernel)

    def function(x, k):
        return convolve(x, k, stride, padding)

    assert_same_values_and_gradients(function, x, k)
    assert convolutions(faster(function), x, k) == (0 if rewritten else 1)


@pytest.mark.slow
@pytest.mark.parametrize(("images", "kernel"), [((8, 14, 14, 48), (3, 3, 48, 24)), ((8, 8, 8, 96), (3, 3, 96, 32))])
def test_rounding_errors_in_float32(images, kernel):
    """Against float64, as a share of the largest number; seen 0.9e-6 and 1.3e-6."""
    random = np.random.default_rng(0)
    x, k = random.normal(size=images), random.normal(size=kernel)

    def values_and_gradients(function, dtype):
        y, gradients = jax.vjp(function, x.astype(dtype), k.astype(dtype))
        weights = np.random.default_rng(1).normal(size=y.shape).astype(dtype)
        return [np.asarray(value) for value in (y, *gradients(weights))]

    found = values_and_gradients(faster(convolve), np.float32)
    with jax.enable_x64(True):
        wanted = values_and_gradients(convolve, np.float64)
    for mine, other in zip(found, wanted, strict=True):
        assert (mine.dtype, other.dtype) == (np.float32, np.float64)
        np.testing.assert_allclose(mine, other, rtol=0, atol=3e-6 * np.abs(other).max())


@quick(
    3,
    ("shape", "options"),
    [
        ((8, 12, 4), {"kernel_size": (3,)}),
        ((8, 12, 12, 4), {"kernel_size": (3, 3), "feature_group_count": 2}),
        ((8, 12, 12, 4), {"kernel_size": (3, 3), "padding": "CIRCULAR"}),
        ((8, 6, 6, 6, 2), {"kernel_size": (3, 3, 3), "strides": 2}),
        ((8, 12, 12, 4), {"kernel_size": (3, 3), "kernel_dilation": 2}),
        ((8, 12, 12, 4), {"kernel_size": (3, 3), "input_dilation": 2, "padding": 1}),
        ((8, 12, 12, 4), {"kernel_size": (3, 3), "preferred_element_type": jnp.float64}),
        ((12, 12, 4), {"kernel_size": (3, 3)}),  # a single image
    ],
)
def test_layers_of_any_kind(float64, shape, options):
    """Against the same layer with XLA's convolution."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape))
    layer = nnx.Conv(shape[-1], 6, **options, param_dtype=jnp.float64, rngs=nnx.Rngs(0))

    def apply(kernel, bias):
        return nnx.merge(nnx.graphdef(layer), {"kernel": kernel, "bias": bias})(x)

    assert_same_values_and_gradients(apply, layer.kernel[...], layer.bias[...])


@quick(1, "size", [(9, 12), (28, 28), (10, 10), (4, 5)])
@pytest.mark.parametrize("bias", [True, False])
def test_of_a_pooled_convolution_only_the_corners_are_computed(float64, size, bias):
    random = np.random.default_rng(0)
    x, k, b = random.normal(size=(3, *size, 1)), random.normal(size=(3, 3, 1, 8)), random.normal(size=8)

    def network(x, k, b):
        y = convolve(x, k)
        return nnx.relu(max_pool(y + b.reshape(1, 1, 1, 8) if bias else y))

    assert_same_values_and_gradients(network, x, k, b)
    program = jax.jit(faster(network)).lower(x, k, b).compile().as_text()  # without what nothing needs
    assert " convolution(" not in program
    assert " convolution(" in jax.jit(network).lower(x, k, b).compile().as_text()


def test_equal_corners_of_a_window_give_the_kernel_one_gradient(float64):
    """Flat areas, as in digits: rounding may decide which corner is the largest, and all see the same pixels."""
    random = np.random.default_rng(0)
    x = random.integers(0, 2, (3, 14, 14, 1)).repeat(4, 1).repeat(4, 2).astype(float)
    assert_same_values_and_gradients(lambda k: max_pool(convolve(x, k)), random.normal(size=(3, 3, 1, 8)))


@pytest.mark.parametrize(
    "cut",
    [
        np.s_[:, ::2, ::2],  # of 9 rows a fifth, which no window has
        np.s_[:, 2:8:2, 1:8:2],
        np.s_[:, 0:8:2, 0:8],
        np.s_[:, 0:8:3, 0:8:3],
        np.s_[1:, 0:8:2, 0:8:2],
        np.s_[:, 0:8:2, 0:8:2, :4],
        np.s_[:, 1:8:2, 1:8:2],
    ],
)
@quick(1, "channels", [1, 2])
def test_other_slices_of_a_convolution(float64, cut, channels):
    random = np.random.default_rng(0)
    x, k = random.normal(size=(3, 11, 11, channels)), random.normal(size=(3, 3, channels, 8))
    assert_same_values_and_gradients(lambda x, k: convolve(x, k)[cut], x, k)


def test_images_as_small_as_the_kernel_allows_or_smaller():
    kernel = jnp.ones((3, 3, 2, 5))
    for size, wanted in ((3, 1), (2, 0), (1, 0)):
        found = faster(convolve)(jnp.ones((8, size, 6, 2)), kernel)
        np.testing.assert_array_equal(found, jnp.full((8, wanted, 4, 5), 18.0))


def test_bfloat16_stays_with_xla():
    x, k = jnp.ones((8, 12, 12, 4), jnp.bfloat16), jnp.ones((3, 3, 4, 8), jnp.bfloat16)
    assert convolutions(faster(convolve), x, k) == 1
    np.testing.assert_array_equal(np.asarray(faster(convolve)(x, k), np.float32), 36.0)
