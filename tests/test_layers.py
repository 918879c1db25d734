"""The exact layers against NumPy, Flax's own and each other."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pmapdp.layers import (
    Context,
    ExactAttention,
    ExactBatchNorm,
    ExactDropout,
    example_keys,
    make_exact,
    use_context,
)


def in_training(n, indices=None, weights=None):
    """The context of an update on n examples."""
    indices = jnp.arange(n) if indices is None else jnp.asarray(indices)
    weights = np.ones(n, np.float32) if weights is None else weights
    return use_context(
        Context(weights, example_keys(0, jnp.int32(0), indices), 0, train=True)
    )


# Dropout


def masks(*layers, n=1):
    """Which of 500 ones each layer keeps, `[n, 500]` each."""
    model = make_exact(nnx.List(layers))
    with in_training(n):
        return [np.asarray(layer(jnp.ones((n, 500)))) for layer in model]


@functools.cache
def dropout():
    return nnx.Dropout(0.5, rngs=nnx.Rngs(0))


class Scanned(nnx.Module):
    """Two layers of dropout in a scan, both on the same inputs."""

    def __init__(self):
        make = nnx.vmap(
            lambda rngs: nnx.Dropout(0.5, rngs=rngs), in_axes=(0,), out_axes=0
        )
        self.layers = nnx.split_rngs(splits=2)(make)(nnx.Rngs(0))

    def __call__(self, x):
        scan = nnx.scan(
            lambda x, layer: (x, layer(x)),
            in_axes=(nnx.Carry, 0),
            out_axes=(nnx.Carry, 0),
        )
        return scan(x, self.layers)[1]


def test_masks_differ_between_examples_layers_calls_and_the_layers_of_a_scan():
    """`test_3_randomness_of_the_example.py` has updates and seeds."""
    first, other, again, scanned = masks(
        dropout(), nnx.Dropout(0.5), dropout(), Scanned(), n=2
    )
    rows = [*first, *other, *again, *scanned[0], *scanned[1]]
    for i, row in enumerate(rows):
        assert set(np.unique(row)) == {0.0, 2.0}
        for earlier in rows[:i]:
            # Independent: half of 500, the standard deviation is 0.022.
            assert 0.4 < (row == earlier).mean() < 0.6


def test_settings_of_dropout():
    """A layer that is off, frozen, or shares its masks along an axis."""
    layers = [nnx.Dropout(0.0), nnx.Dropout(1.0), nnx.Dropout(0.5, deterministic=True)]
    shared = make_exact(nnx.Dropout(0.5, broadcast_dims=(0, 2)))
    assert [np.unique(mask).tolist() for mask in masks(*layers)] == [[1], [0], [1]]
    with in_training(3):
        y = np.asarray(shared(jnp.ones((3, 50, 4))))
    np.testing.assert_array_equal(y, np.broadcast_to(y[:, :, :1], y.shape))
    assert not np.array_equal(y[0], y[1])  # examples never share a mask
    np.testing.assert_array_equal(shared(jnp.ones((3, 50, 4))), 1)  # in evaluation


# Batch norm


def batch_norm(features, **settings):
    return make_exact(nnx.BatchNorm(features, rngs=nnx.Rngs(0), **settings))


@pytest.mark.parametrize("shape", [(16, 4, 4, 3), (64, 3)])
def test_digits_at_a_mean_of_a_hundred_standard_deviations(shape):
    """Against NumPy in float64. Fresh, the variance loses (mean / std)² of float32's
    digits; after forty updates at momentum 0.9 the running mean is 1.5 standard
    deviations away, and next to nothing is lost."""
    layer = batch_norm(3, momentum=0.9)
    axes = tuple(range(len(shape) - 1))

    @nnx.jit
    def update(layer, x):
        with in_training(len(x)):
            return layer(x)

    errors = []
    for x in np.random.default_rng(0).normal(100, 1, (41, *shape)).astype(np.float32):
        y = update(layer, x)
        wide = x.astype(np.float64)
        errors.append(
            np.abs(y - (wide - wide.mean(axes)) / np.sqrt(wide.var(axes) + 1e-5)).max()
        )
    assert max(errors[:5]) < 1e-2
    assert errors[40] < 2e-5
    assert errors[40] < max(errors[:5]) / 10


def test_batch_norm_is_flaxs_on_one_device_without_padding():
    """Output and running moments, with the features on another axis, within 1e-5 in
    float32; then in evaluation.
    """
    x = np.random.default_rng(0).normal(2, 3, (6, 5, 4)).astype(np.float32)
    settings = {"axis": 1, "momentum": 0.8, "epsilon": 1e-3}
    stock = nnx.BatchNorm(5, rngs=nnx.Rngs(0), **settings)
    ours = batch_norm(5, **settings)
    with in_training(6):
        np.testing.assert_allclose(ours(x), stock(x), atol=1e-5)
    np.testing.assert_allclose(ours.mean[...], stock.mean[...], atol=1e-5)
    np.testing.assert_allclose(ours.var[...], stock.var[...], rtol=1e-5)
    np.testing.assert_allclose(ours(x), stock(x, use_running_average=True), atol=1e-5)


def test_padding_and_frozen_layers_move_nothing():
    x = jnp.full((3, 2), 7.0)
    layer = batch_norm(2)
    frozen = batch_norm(2, use_running_average=True)
    with in_training(3, weights=jnp.zeros(3)):
        assert np.isfinite(layer(x)).all()
    with in_training(3):
        np.testing.assert_allclose(frozen(x), x, rtol=1e-5)
    for norm in (layer, frozen):
        np.testing.assert_array_equal([norm.mean[...], norm.var[...]], [[0, 0], [1, 1]])


def test_moments_of_bfloat16_are_in_float32():
    x = np.random.default_rng(0).normal(3, 1, (512, 2)).astype(jnp.bfloat16)
    layer = batch_norm(2, dtype=jnp.bfloat16, momentum=0.0)
    with in_training(512):
        assert layer(jnp.asarray(x)).dtype == jnp.bfloat16
    np.testing.assert_allclose(layer.mean[...], x.astype(np.float64).mean(0), rtol=1e-6)
    np.testing.assert_allclose(layer.var[...], x.astype(np.float64).var(0), rtol=1e-5)


def test_gradient_of_batch_norm_is_that_of_its_formula(float64):
    """Against the derivative of the moments' definition, in float64, with one example
    of weight 0.
    """
    random = np.random.default_rng(4)
    x = random.normal(3.0, 2.0, size=(6, 5, 4, 3))
    weights = jnp.asarray([1.0, 1, 0, 1, 1, 1])
    # Also into the padding: the formula must hold for any loss.
    into = random.normal(size=x.shape)

    def by_definition(x):
        w = weights[:, None, None, None]
        mean = (w * x).sum((0, 1, 2)) / (5 * 20)
        variance = (w * (x - mean) ** 2).sum((0, 1, 2)) / (5 * 20)
        return (into * (x - mean) / jnp.sqrt(variance + 1e-3)).sum()

    def by_layer(x):
        with in_training(6, weights=weights):
            return (
                into * batch_norm(3, epsilon=1e-3, param_dtype=jnp.float64)(x)
            ).sum()

    by_hand = jax.jit(jax.grad(by_definition))(x)
    np.testing.assert_allclose(
        jax.jit(jax.grad(by_layer))(x), by_hand, rtol=0, atol=1e-12
    )


# Attention


def test_attention_is_flaxs_in_evaluation():
    settings = {
        "num_kv_heads": 2,
        "dropout_rate": 0.3,
        "decode": False,
        "deterministic": True,
    }
    stock, ours = (
        nnx.MultiHeadAttention(4, 8, rngs=nnx.Rngs(0), **settings) for _ in range(2)
    )
    x = np.random.default_rng(0).normal(size=(3, 5, 8))
    known = np.arange(5) < np.array([[5], [3], [1]])
    mask = jnp.asarray(known[:, None, None])
    make_exact(ours)
    for causal in (False, True):
        wanted = stock(x, mask=jnp.broadcast_to(mask, (3, 1, 5, 5)), is_causal=causal)
        np.testing.assert_allclose(
            ours(x, mask=mask, is_causal=causal), wanted, atol=1e-6
        )


def test_attention_drops_weights_by_the_example():
    # No mask for all, as in Flax.
    options = {
        "decode": False,
        "broadcast_dropout": True,
        "rngs": nnx.Rngs(0),
    }
    layer = make_exact(nnx.MultiHeadAttention(2, 8, dropout_rate=0.5, **options))
    x = np.repeat(np.random.default_rng(0).normal(size=(1, 5, 8)), 3, 0)
    with in_training(3):
        one = layer(x)
        again = layer(x)
    with in_training(3, indices=[2, 1, 0]):
        np.testing.assert_allclose(layer(x)[::-1], one, atol=1e-6)
    assert np.abs(one[0] - one[1]).max() > 1e-3
    assert np.abs(one - again).max() > 1e-3
    np.testing.assert_allclose(layer(x)[0], layer(x)[1], atol=1e-6)  # in evaluation


# What is exchanged


def test_exchange_leaves_subclasses_and_other_attention_alone():
    class Mine(nnx.Dropout):
        pass

    def mine(query, key, value, **_):
        return value

    layers = [nnx.Dropout(0.1), Mine(0.1), nnx.BatchNorm(2, rngs=nnx.Rngs(0))]
    layers += [
        nnx.MultiHeadAttention(1, 2, attention_fn=function, rngs=nnx.Rngs(0))
        for function in (mine, nnx.dot_product_attention)
    ]
    kinds = [ExactDropout, Mine, ExactBatchNorm, nnx.MultiHeadAttention, ExactAttention]
    assert [type(layer) for layer in make_exact(nnx.List(layers))] == kinds


@pytest.mark.parametrize(
    "make", [lambda: nnx.Dropout(0.5), lambda: nnx.BatchNorm(4, rngs=nnx.Rngs(0))]
)
def test_the_first_axis_must_count_the_examples(make):
    with (
        in_training(6),
        pytest.raises(ValueError, match="first axis doesn't count the examples"),
    ):
        make_exact(make())(jnp.ones((5, 6, 4)))
