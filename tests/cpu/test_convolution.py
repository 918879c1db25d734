"""Convolution for CPUs against XLA's own, in float64: values and both gradients."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from examples import random_split, whole_batch
from flax import nnx
from jax import lax
from pmapdp.cpu.canonical_convolution import LAYOUT

from pmapdp.cpu.convolution import convolve, convolve_and_pool
from pmapdp.cpu.loop import several
from pmapdp.models.layers import max_pool_2x2
from pmapdp.registry import MODELS
from pmapdp.state import Task, create_state
from pmapdp.steps import make_steps


@pytest.mark.parametrize(
    ("images", "kernel", "stride", "padding", "rewritten"),
    [
        ((3, 28, 28, 1), (3, 3, 1, 32), 1, "VALID", True),  # cnn
        ((3, 28, 28, 1), (3, 3, 1, 12), 1, "SAME", True),  # convnet
        ((3, 9, 9, 1), (5, 3, 1, 7), 1, "SAME", True),
        ((8, 28, 28, 12), (6, 6, 12, 24), 2, "VALID", True),  # convnet, tiles of 4x4
        ((8, 12, 12, 24), (6, 6, 24, 32), 2, "SAME", True),  # convnet, tiles of 3x3
        ((8, 10, 8, 3), (3, 3, 3, 5), 1, "SAME", True),  # 2x2
        ((8, 9, 6, 3), (3, 3, 3, 5), 1, "SAME", True),  # 3x3
        ((8, 8, 12, 3), (3, 3, 3, 5), 1, "SAME", True),  # 4x4
        ((8, 8, 4, 3), (3, 3, 3, 5), 1, "SAME", True),  # one tile in a row
        ((8, 16, 8, 3), (6, 6, 3, 5), 2, "SAME", True),
        ((7, 10, 8, 3), (3, 3, 3, 5), 1, "SAME", False),  # few examples: XLA's
        ((32, 9, 8, 3), (3, 3, 3, 5), 1, "SAME", False),  # no tile divides both
        ((32, 9, 9, 3), (5, 5, 3, 4), 2, "SAME", False),
        ((3, 11, 10, 2), (4, 5, 2, 3), 3, "VALID", False),  # the last row is seen by no output
        ((2, 9, 7, 2), (2, 3, 2, 4), 3, "SAME", False),  # pixels between two windows
        ((3, 9, 9, 1), (3, 3, 1, 4), 2, "VALID", False),
    ],
)
def test_values_and_gradients_are_those_of_xla(float64, images, kernel, stride, padding, rewritten):
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
    assert ("convolution(" not in compiled) == rewritten


@pytest.mark.parametrize(
    ("images", "kernel", "padding", "error"),
    [
        ((8, 28, 28, 12), (6, 6, 12, 24), "VALID", 3e-6),  # 4x4 pixels, seen 0.9e-6
        ((8, 12, 12, 24), (6, 6, 24, 32), "SAME", 3e-6),  # 3x3, seen 1.3e-6
    ],
)
def test_rounding_errors_in_float32(images, kernel, padding, error):
    random = np.random.default_rng(0)
    x, k = random.normal(size=images), random.normal(size=kernel)

    def values_and_gradients(function, dtype):
        y, gradients = jax.vjp(
            lambda x, k: function(x, k, (2, 2), padding, dimension_numbers=LAYOUT), x.astype(dtype), k.astype(dtype)
        )
        weights = np.random.default_rng(1).normal(size=y.shape).astype(dtype)
        return [np.asarray(value) for value in (y, *gradients(weights))]

    found = values_and_gradients(convolve, np.float32)
    with jax.enable_x64(True):
        wanted = values_and_gradients(lax.conv_general_dilated, np.float64)
    for mine, other in zip(found, wanted, strict=True):
        assert (mine.dtype, other.dtype) == (np.float32, np.float64)
        np.testing.assert_allclose(mine, other, rtol=0, atol=error * np.abs(other).max())


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((8, 12, 4), {"kernel_size": (3,)}),
        ((8, 6, 6, 6, 2), {"kernel_size": (3, 3, 3), "strides": 2}),
        ((8, 12, 12, 4), {"kernel_size": (3, 3), "feature_group_count": 2}),
        ((8, 12, 12, 4), {"kernel_size": (3, 3), "kernel_dilation": 2}),
        ((8, 12, 12, 4), {"kernel_size": (3, 3), "input_dilation": 2, "padding": 1}),
        ((8, 12, 12, 4), {"kernel_size": (3, 3), "preferred_element_type": jnp.float64}),
        ((8, 12, 12, 4), {"kernel_size": (5, 5), "padding": "CIRCULAR", "strides": 2}),
        ((12, 12, 4), {"kernel_size": (5, 5)}),  # a single image
    ],
)
def test_layers_of_any_kind_take_it(float64, shape, options):
    """Against the same layer with XLA's convolution."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape))

    def layer(**more):
        return nnx.Conv(shape[-1], 6, **options, **more, param_dtype=jnp.float64, rngs=nnx.Rngs(0))

    def value_and_gradient(layer):
        return nnx.value_and_grad(lambda layer: jnp.square(layer(x)).sum())(layer)

    found, wanted = value_and_gradient(layer(conv_general_dilated=convolve)), value_and_gradient(layer())
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["cnn", "convnet"])
def test_in_the_loop_of_a_dispatch_all_convolutions_have_the_form_of_the_fast_kernel(model, dtype):
    """With 4 images a device, too few for Winograd. Others would take up to 20 times as long there."""
    task = Task(MODELS[model], optax.adam(1e-3), dtype=dtype)
    steps, S, N = make_steps("pmap", task, jax.devices()[:2]), 3, 2
    dispatch = several(steps, S, N)
    batches = whole_batch(random_split(S * 8), np.arange(S * 8))
    state = steps.place_state(create_state(task))
    program = dispatch.run.lower(state, *dispatch.place(batches, S)).compile().as_text()
    found = re.findall(r" convolution\(.*?dim_labels=(\S+?)[,\s]", program)
    assert set(found) <= {"b01f_01io->b01f"}
    assert found or (model, dtype) == ("cnn", "float32")  # which is matrix products throughout


@pytest.mark.parametrize("size", [(28, 28), (9, 12)])
def test_convolution_with_pooling_is_one_after_the_other(float64, size):
    random = np.random.default_rng(0)
    x, k = random.normal(size=(3, *size, 1)), random.normal(size=(3, 3, 1, 8))

    def separately(x, k):
        return max_pool_2x2(lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=LAYOUT))

    wanted, their_gradients = jax.vjp(separately, x, k)
    found, our_gradients = jax.vjp(convolve_and_pool, x, k)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
    weights = random.normal(size=wanted.shape)
    for mine, other in zip(our_gradients(weights), their_gradients(weights), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-12 * np.abs(other).max())
    assert "convolution(" not in jax.jit(convolve_and_pool).lower(x, k).compile().as_text()


def test_equal_corners_of_a_window_give_the_kernel_one_gradient(float64):
    random = np.random.default_rng(0)
    x = random.integers(0, 2, (3, 14, 14, 1)).repeat(4, 1).repeat(4, 2).astype(float)  # flat areas, as in digits
    k = random.normal(size=(3, 3, 1, 8))

    def separately(k):
        return max_pool_2x2(lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=LAYOUT))

    wanted, their_gradient = jax.vjp(separately, k)
    found, our_gradient = jax.vjp(lambda k: convolve_and_pool(x, k), k)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
    weights = random.normal(size=wanted.shape)
    mine, other = our_gradient(weights)[0], their_gradient(weights)[0]
    np.testing.assert_allclose(mine, other, rtol=0, atol=1e-12 * np.abs(other).max())


def test_images_as_small_as_the_kernel_allows_or_smaller():
    kernel = jnp.ones((3, 3, 2, 5))
    for size, wanted in ((3, 1), (2, 0), (1, 0)):
        found = convolve(jnp.ones((8, size, 6, 2)), kernel, (1, 1), "VALID", dimension_numbers=LAYOUT)
        np.testing.assert_array_equal(found, jnp.full((8, wanted, 4, 5), 18.0))


def test_bfloat16_stays_with_xla():
    x, k = jnp.ones((2, 12, 12, 4), jnp.bfloat16), jnp.ones((6, 6, 4, 8), jnp.bfloat16)
    found = convolve(x, k, (2, 2), "VALID", dimension_numbers=LAYOUT)
    np.testing.assert_array_equal(np.asarray(found, np.float32), 144.0)
