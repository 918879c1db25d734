"""The networks are those of their sources: sizes, initial values, and outputs against plain programs."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import numpy_mlp
import optax
import plain_convnet
import pytest
from examples import random_split, random_split_for, whole_batch
from flax import nnx
from jax import lax

from pmapdp.models.batch_norm import BatchNorm, moments, normalise
from pmapdp.models.layers import Context, example_keys, max_pool_2x2
from pmapdp.registry import MODELS, view_of
from pmapdp.state import Task, count_parameters, create_state
from pmapdp.steps.shared import Body

SPLIT = random_split(6)
# Of the transformer: embeddings; twice two norms, four projections with biases and the MLP; norm and logits.
BLOCK = 4 * 64 + 4 * (64 * 64 + 64) + 64 * 128 + 128 + 128 * 64 + 64
TRANSFORMER = (8192 + 128) * 64 + 2 * BLOCK + 2 * 64 + 64 * 2 + 2
PARAMETERS = {"mlp": 669_706, "cnn": 347_146, "convnet": 49_242, "text_mlp": 57_746, "transformer": TRANSFORMER}
RUNNING_STATISTICS = {"mlp": 0, "cnn": 0, "convnet": 136, "text_mlp": 96, "transformer": 0}
CLASSES = {"images": 10, "tfidf": 2, "tokens": 2}


@pytest.fixture(scope="module")
def states():
    return {model: create_state(Task(MODELS[model], optax.sgd(0.1))) for model in MODELS}


@pytest.mark.parametrize("model", MODELS)
def test_numbers_of_parameters_and_running_statistics(model, states):
    assert count_parameters(states[model].params) == PARAMETERS[model]
    assert sum(leaf.size for leaf in jax.tree.leaves(states[model].batch_stats)) == RUNNING_STATISTICS[model]


@pytest.mark.parametrize("model", MODELS)
def test_logits_have_one_column_a_class(model):
    logits = MODELS[model](rngs=nnx.Rngs(0))(jnp.asarray(random_split_for(model, 6).inputs))
    assert logits.shape == (6, CLASSES[view_of(MODELS[model])])
    assert logits.dtype == jnp.float32


@pytest.mark.parametrize("model", MODELS)
def test_initial_parameters_follow_from_the_seed(model, states):
    again = create_state(Task(MODELS[model], optax.sgd(0.1)))
    other = create_state(Task(MODELS[model], optax.sgd(0.1), seed=1))
    first = states[model].params["logits"]["kernel"]
    np.testing.assert_array_equal(first, again.params["logits"]["kernel"])
    assert np.abs(first - other.params["logits"]["kernel"]).max() > 0


def test_mlp_starts_as_in_the_blog(states):
    kernel = states["mlp"].params["hidden1"]["kernel"]
    assert kernel.std() == pytest.approx(0.01, rel=0.01)  # 401,408 draws
    assert not states["mlp"].params["hidden1"]["bias"].any()


@pytest.mark.parametrize(
    ("model", "layer", "fan_in", "fan_out"),
    [
        ("cnn", "conv", 9, 9 * 32),
        ("cnn", "hidden", 5408, 64),
        ("convnet", "conv2", 36 * 12, 36 * 24),
        ("convnet", "logits", 256, 10),
    ],
)
def test_keras_models_start_from_glorot_uniform(states, model, layer, fan_in, fan_out):
    kernel, limit = states[model].params[layer]["kernel"], np.sqrt(6 / (fan_in + fan_out))
    assert np.abs(kernel).max() <= limit
    assert np.abs(kernel).max() > 0.95 * limit
    assert not states[model].params["logits"]["bias"].any()


def test_mlp_equals_numpy(states):
    task, params = Task(MODELS["mlp"], optax.sgd(0.1)), states["mlp"].params
    model = nnx.merge(task.model_structure(), params, {})
    loss, _ = numpy_mlp.loss_and_gradients(params, SPLIT.inputs, SPLIT.labels)
    losses = optax.softmax_cross_entropy_with_integer_labels(model(jnp.asarray(SPLIT.inputs)), SPLIT.labels)
    assert float(losses.mean()) == pytest.approx(loss, rel=1e-6)


def test_cnn_equals_plain_convolution_and_pooling(states):
    params = states["cnn"].params
    model = nnx.merge(Task(MODELS["cnn"], optax.sgd(0.1)).model_structure(), params, {})
    x = plain_convnet.convolve(SPLIT.inputs / np.float32(255), params["conv"]["kernel"], 1, "VALID")
    x = reduce_window_pool(jnp.maximum(x + params["conv"]["bias"], 0)).reshape(6, -1)
    x = jnp.maximum(x @ params["hidden"]["kernel"] + params["hidden"]["bias"], 0)
    wanted = x @ params["logits"]["kernel"] + params["logits"]["bias"]
    np.testing.assert_allclose(model(jnp.asarray(SPLIT.inputs)), wanted, atol=1e-5)


def test_padded_convnet_equals_the_plain_one_on_the_exact_batch(states):
    """Logits and running statistics of 5 examples and 3 rows of padding, against the 5 alone."""
    state = jax.device_put(states["convnet"])
    model = nnx.merge(
        Task(MODELS["convnet"], optax.sgd(0.1)).model_structure(), state.params, state.batch_stats, copy=True
    )
    images = np.concatenate([SPLIT.inputs[:5], random_split(3, seed=4).inputs])
    keys = example_keys(0, jnp.int32(2), jnp.arange(8))
    weights = jnp.asarray([1, 1, 1, 1, 1, 0, 0, 0], jnp.float32)
    logits = model(jnp.asarray(images), Context(weights, keys, train=True))

    masks = jnp.stack([plain_convnet.dropout_mask(0, 2, index) for index in range(5)])
    wanted, moments = plain_convnet.forward(state.params, SPLIT.inputs[:5], masks)
    np.testing.assert_allclose(logits[:5], wanted, atol=1e-5)
    for layer in plain_convnet.NORM_LAYERS:
        mean, variance = moments[layer]
        found = getattr(model, layer)
        np.testing.assert_allclose(found.mean[...], 0.01 * mean, atol=1e-6)
        np.testing.assert_allclose(found.variance[...], 0.99 + 0.01 * variance, atol=1e-6)


def test_a_bias_before_batch_norm_has_no_gradient(float64):
    """The derivative of the plain network in float64 is 0 up to rounding; ours is 0, so that Adam leaves the bias."""
    task = Task(MODELS["convnet"], optax.sgd(0.1), dtype="float64")
    state = jax.device_put(create_state(task))
    masks = jnp.stack([plain_convnet.dropout_mask(0, 0, index) for index in range(6)])
    gradient_of_plain = jax.grad(plain_convnet.summed_loss, has_aux=True)
    wanted = gradient_of_plain(state.params, SPLIT.inputs, SPLIT.labels, masks)[0]["large_k"]
    assert np.abs(wanted["bias"]).max() < 1e-13 * np.abs(wanted["kernel"]).max()

    found = Body(task).gradient_sums(state, jax.device_put(whole_batch(SPLIT, np.arange(6))))[0]["large_k"]
    assert not found["bias"].any()
    np.testing.assert_allclose(found["kernel"], wanted["kernel"], atol=1e-12 * np.abs(wanted["kernel"]).max())


def reduce_window_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@pytest.mark.parametrize("shape", [(2, 26, 26, 3), (2, 7, 6, 3), (1, 6, 7, 2), (3, 5, 5, 1), (1, 2, 3, 1)])
def test_max_pool_and_its_gradient_equal_reduce_window(shape):
    """All values differ: where the largest stands twice in a window, the two share the gradient differently."""
    generator = np.random.default_rng(0)
    x = jnp.asarray(generator.permutation(np.prod(shape)).reshape(shape), jnp.float32)
    np.testing.assert_array_equal(max_pool_2x2(x), reduce_window_pool(x))
    weights = jnp.asarray(generator.normal(size=max_pool_2x2(x).shape), jnp.float32)
    found = jax.grad(lambda x: (weights * max_pool_2x2(x)).sum())(x)
    np.testing.assert_array_equal(found, jax.grad(lambda x: (weights * reduce_window_pool(x)).sum())(x))


@pytest.mark.parametrize("shape", [(16, 4, 4, 3), (16, 2, 2, 70), (64, 3)])
def test_batch_norm_equals_numpy_also_for_a_large_mean(shape):
    """A mean of 1,000 and a spread of 1: E[x^2] - E[x]^2 in float32 would be wrong in the first digit."""
    x = np.random.default_rng(0).normal(1000, 1, shape).astype(np.float32)
    layer, axes = BatchNorm(shape[-1]), tuple(range(x.ndim - 1))
    y = layer(jnp.asarray(x), Context(train=True))
    wide = x.astype(np.float64)
    mean, variance = wide.mean(axes), wide.var(axes)
    np.testing.assert_allclose(y, (wide - mean) / np.sqrt(variance + 1e-3), atol=2e-3)
    np.testing.assert_allclose(layer.mean[...], 0.01 * mean, rtol=1e-5)
    np.testing.assert_allclose(layer.variance[...], 0.99 + 0.01 * variance, rtol=1e-5)


@pytest.mark.parametrize("away", [0, 0.5, 2, 2.9, 3.1, 10, 1000])
def test_variance_keeps_its_digits_however_far_the_mean_is_from_the_running_one(away):
    """The mean `away` standard deviations from the running mean. Against float64; 3 is where the second sum sets in."""
    x = np.random.default_rng(0).normal(away, 1, (16, 8, 8, 4)).astype(np.float32)
    found = moments(jnp.asarray(x), jnp.ones(16), jnp.float32(16), jnp.zeros(4), None)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(found[0], wide.mean((0, 1, 2)), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found[1], wide.var((0, 1, 2)), rtol=5e-6)
    assert found[2] == 16 * 64


def test_moments_near_the_running_mean_need_one_exchange():
    """A second one stands in a branch that only a mean far from the running one enters."""
    x, near = jnp.zeros((2, 4, 8, 8, 4)), jnp.zeros(4)
    mapped = jax.pmap(lambda x: moments(x, jnp.ones(4), jnp.float32(4), near, "data"), axis_name="data")
    program = mapped.lower(x).compile().as_text()
    before, entry = program.split("\nENTRY ")
    assert (before.count(" all-reduce("), entry.count(" all-reduce(")) == (1, 1)
    assert len(re.findall(r" conditional\(", entry)) == 1


def test_batch_norm_evaluates_with_the_running_statistics():
    layer = BatchNorm(2)
    layer.mean[...], layer.variance[...] = jnp.asarray([1.0, 2.0]), jnp.asarray([4.0, 9.0])
    y = layer(jnp.asarray([[3.0, 5.0]]), Context())
    np.testing.assert_allclose(y, [[2 / np.sqrt(4.001), 3 / np.sqrt(9.001)]], rtol=1e-6)


def test_batch_norm_of_padding_alone_moves_nothing():
    layer = BatchNorm(2)
    y = layer(jnp.full((3, 2), 7.0), Context(jnp.zeros(3), train=True))
    assert np.isfinite(y).all()
    np.testing.assert_array_equal(layer.mean[...], 0)
    np.testing.assert_array_equal(layer.variance[...], 1)


@pytest.mark.parametrize("channels", [3, 70])  # few, and as many as fill a processor's vectors
def test_gradient_of_batch_norm_is_that_of_its_formula(channels):
    """Against JAX's own derivative of the moments' definition, in float64, with one example of weight 0."""
    with jax.enable_x64(True):
        random = np.random.default_rng(4)
        x, weights = random.normal(3.0, 2.0, size=(6, 5, 4, channels)), np.array([1.0, 1, 0, 1, 1, 1])
        into = random.normal(size=x.shape)  # also into the padding: the formula must hold for any loss

        def by_definition(x):
            w = jnp.asarray(weights)[:, None, None, None]
            mean = (w * x).sum((0, 1, 2)) / (5 * 20)
            variance = (w * (x - mean) ** 2).sum((0, 1, 2)) / (5 * 20)
            return (into * (x - mean) / jnp.sqrt(variance + 1e-3)).sum()

        wanted = jax.grad(by_definition)(x)
        valid = jnp.asarray(weights), jnp.asarray(weights.sum())
        zero = jnp.zeros(channels)
        found = jax.grad(lambda x: (into * normalise(x, *valid, None, zero, 1e-3, None)[0]).sum())(x)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)
