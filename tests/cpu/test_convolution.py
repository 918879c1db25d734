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
from marks import quick

from pmapdp.compare.collectives import collectives
from pmapdp.cpu.convolution import LAYOUT, faster
from pmapdp.cpu.loop import several
from pmapdp.registry import MODELS
from pmapdp.state import Task, build, create_state
from pmapdp.steps import make_strategy


def assert_same_values_and_gradients(function, *inputs):
    """Of `function` and of the faster one, in float64; each number within 1e-12 of the largest."""
    (wanted, their_gradients), (found, our_gradients) = jax.vjp(function, *inputs), jax.vjp(faster(function), *inputs)
    weights = np.random.default_rng(1).normal(size=wanted.shape)
    for ours, theirs in zip((found, *our_gradients(weights)), (wanted, *their_gradients(weights)), strict=True):
        assert ours.dtype == theirs.dtype == jnp.float64
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max(initial=0))


@quick(
    3,
    ("images", "kernel", "stride", "padding", "rewritten"),
    [
        ((3, 28, 28, 1), (3, 3, 1, 32), 1, "VALID", True),  # cnn
        ((8, 12, 12, 24), (6, 6, 24, 32), 2, "SAME", True),  # convnet, tiles that reach beyond the image
        ((7, 10, 8, 3), (3, 3, 3, 5), 1, "SAME", False),  # few examples: XLA's
        ((3, 28, 28, 1), (3, 3, 1, 12), 1, "SAME", True),  # convnet
        ((3, 9, 9, 1), (5, 3, 1, 7), 1, "SAME", True),
        ((8, 28, 28, 12), (6, 6, 12, 24), 2, "VALID", True),  # convnet
        ((8, 11, 9, 3), (6, 6, 3, 5), 2, "VALID", True),  # the last row is seen by no output
        ((8, 3, 4, 3), (3, 3, 3, 5), 1, "VALID", False),  # 1x2 pixels: a tile would multiply more
        ((8, 4, 5, 3), (3, 3, 3, 5), 1, "VALID", True),  # a tile that reaches beyond the image
        ((8, 8, 4, 3), (3, 3, 3, 5), 1, "SAME", True),  # one tile in a row
        ((8, 16, 8, 3), (6, 6, 3, 5), 2, "SAME", True),
        ((32, 9, 8, 3), (3, 3, 3, 5), 1, "SAME", True),  # tiles that reach beyond the image
        ((32, 9, 9, 3), (5, 5, 3, 4), 2, "SAME", False),
        ((3, 11, 10, 2), (4, 5, 2, 3), 3, "VALID", False),  # the last row is seen by no output
        ((2, 9, 7, 2), (2, 3, 2, 4), 3, "SAME", False),  # pixels between two windows
        ((3, 9, 9, 1), (3, 3, 1, 4), 2, "VALID", False),
    ],
)
def test_values_and_gradients_are_those_of_xla(float64, images, kernel, stride, padding, rewritten):
    random = np.random.default_rng(0)
    x, k = random.normal(size=images), random.normal(size=kernel)

    def theirs(x, k):
        return lax.conv_general_dilated(x, k, (stride, stride), padding, dimension_numbers=LAYOUT)

    assert_same_values_and_gradients(theirs, x, k)
    compiled = jax.jit(faster(theirs)).lower(x, k).compile().as_text()
    assert ("convolution(" not in compiled) == rewritten


@quick(
    1,
    ("images", "kernel", "padding", "error"),
    [
        ((8, 28, 28, 12), (6, 6, 12, 24), "VALID", 3e-6),  # seen 0.9e-6
        ((8, 12, 12, 24), (6, 6, 24, 32), "SAME", 3e-6),  # seen 1.3e-6
    ],
)
def test_rounding_errors_in_float32(images, kernel, padding, error):
    random = np.random.default_rng(0)
    x, k = random.normal(size=images), random.normal(size=kernel)

    def xla(x, k):
        return lax.conv_general_dilated(x, k, (2, 2), padding, dimension_numbers=LAYOUT)

    def values_and_gradients(function, dtype):
        y, gradients = jax.vjp(function, x.astype(dtype), k.astype(dtype))
        weights = np.random.default_rng(1).normal(size=y.shape).astype(dtype)
        return [np.asarray(value) for value in (y, *gradients(weights))]

    found = values_and_gradients(faster(xla), np.float32)
    with jax.enable_x64(True):
        wanted = values_and_gradients(xla, np.float64)
    for mine, other in zip(found, wanted, strict=True):
        assert (mine.dtype, other.dtype) == (np.float32, np.float64)
        np.testing.assert_allclose(mine, other, rtol=0, atol=error * np.abs(other).max())


@quick(
    3,
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
def test_layers_of_any_kind(float64, shape, options):
    """Against the same layer with XLA's convolution."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=shape))

    layer = nnx.Conv(shape[-1], 6, **options, param_dtype=jnp.float64, rngs=nnx.Rngs(0))

    def apply(kernel, bias):
        return nnx.merge(nnx.graphdef(layer), {"kernel": kernel, "bias": bias})(x)

    assert_same_values_and_gradients(apply, layer.kernel[...], layer.bias[...])


@quick(1, "dtype", ["float32", "bfloat16"])
@quick(1, "model", ["convnet", "cnn"])
def test_in_the_loop_of_a_dispatch_all_convolutions_have_the_form_of_the_fast_kernel(model, dtype):
    """With 4 images a device, too few for Winograd. Others would take up to 20 times as long there."""
    task = Task(build(MODELS[model], dtype=dtype), optax.adam(1e-3), dtype=dtype, transform=faster)
    steps, S, N = make_strategy("pmap", task, jax.devices()[:2]), 3, 2
    dispatch = several(steps, S, N)
    batches = whole_batch(random_split(S * 8), np.arange(S * 8))
    state = steps.place_state(create_state(task))
    program = dispatch.run.lower(state, *dispatch.place(batches, S)).compile().as_text()
    found = re.findall(r" convolution\(.*?dim_labels=(\S+?)[,\s]", program)
    assert set(found) <= {"b01f_01io->b01f"}
    assert found or (model, dtype) == ("cnn", "float32")  # which is matrix products throughout


def test_under_jit_every_device_keeps_its_images():
    """The compiler splits the steps of Winograd's algorithm by examples, so that gradients and moments travel alone."""
    task = Task(build(MODELS["convnet"]), optax.adam(1e-3), transform=faster)
    steps, split = make_strategy("jit", task, jax.devices()[:8]), random_split(64)
    state = steps.place_state(create_state(task))
    program = steps.train_step.lower(state, steps.place_batch(whole_batch(split, np.arange(64)))).compile().as_text()
    assert {each.kind for each in collectives(program)} == {"all-reduce"}


def convolved_and_pooled(x, k):
    return nnx.max_pool(lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=LAYOUT), (2, 2), (2, 2))


@quick(1, "size", [(9, 12), (28, 28)])
def test_convolution_with_pooling_is_one_after_the_other(float64, size):
    random = np.random.default_rng(0)
    x, k = random.normal(size=(3, *size, 1)), random.normal(size=(3, 3, 1, 8))
    assert_same_values_and_gradients(convolved_and_pooled, x, k)
    assert "convolution(" not in jax.jit(faster(convolved_and_pooled)).lower(x, k).compile().as_text()


@quick(1, "bias", [True, False])
@pytest.mark.parametrize("relu", [False, True])
def test_bias_and_relu_may_stand_between_convolution_and_pooling(float64, bias, relu):
    random = np.random.default_rng(0)
    x, k, b = random.normal(size=(3, 12, 12, 1)), random.normal(size=(3, 3, 1, 8)), random.normal(size=8)

    def network(x, k, b):
        x = lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=LAYOUT)
        x = x + b.reshape(1, 1, 1, 8) if bias else x
        return nnx.max_pool(nnx.relu(x) if relu else x, (2, 2), (2, 2))

    assert_same_values_and_gradients(network, x, k, b)
    program = jax.jit(faster(network)).lower(x, k, b).compile().as_text()
    assert "f64[3,5,5,8]" in program
    assert "f64[3,10,10,8]" not in program  # nothing is computed before it is pooled


def test_equal_corners_of_a_window_give_the_kernel_one_gradient(float64):
    random = np.random.default_rng(0)
    x = random.integers(0, 2, (3, 14, 14, 1)).repeat(4, 1).repeat(4, 2).astype(float)  # flat areas, as in digits
    assert_same_values_and_gradients(lambda k: convolved_and_pooled(x, k), random.normal(size=(3, 3, 1, 8)))


def test_images_as_small_as_the_kernel_allows_or_smaller():
    convolve = faster(lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=LAYOUT))
    kernel = jnp.ones((3, 3, 2, 5))
    for size, wanted in ((3, 1), (2, 0), (1, 0)):
        found = convolve(jnp.ones((8, size, 6, 2)), kernel)
        np.testing.assert_array_equal(found, jnp.full((8, wanted, 4, 5), 18.0))


def test_bfloat16_stays_with_xla():
    convolve = faster(lambda x, k: lax.conv_general_dilated(x, k, (2, 2), "VALID", dimension_numbers=LAYOUT))
    x, k = jnp.ones((2, 12, 12, 4), jnp.bfloat16), jnp.ones((6, 6, 4, 8), jnp.bfloat16)
    np.testing.assert_array_equal(np.asarray(convolve(x, k), np.float32), 144.0)
