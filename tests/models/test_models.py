"""The networks are those of their sources: sizes, initial values, and outputs against plain programs."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy_mlp
import optax
import plain_convnet
import pytest
from examples import CLASSIFIERS, random_split, random_split_for
from flax import nnx
from jax import lax
from marks import quick

from pmapdp.models.batch_norm import BatchNorm
from pmapdp.models.convnet import convolve_blocks
from pmapdp.models.layers import Context, example_keys
from pmapdp.registry import MODELS, featurizer_of
from pmapdp.state import Task, build, count_parameters, create_state

SPLIT = random_split(6)
# Of the transformer: embeddings; twice two norms, four projections with biases and the MLP; norm and logits.
BLOCK = 4 * 64 + 4 * (64 * 64 + 64) + 64 * 128 + 128 + 128 * 64 + 64
TRANSFORMER = (8192 + 128) * 64 + 2 * BLOCK + 2 * 64 + 64 * 2 + 2
PARAMETERS = {"mlp": 669_706, "cnn": 347_146, "convnet": 49_210, "text_mlp": 57_746, "transformer": TRANSFORMER}
PARAMETERS["speedrun"] = 24 * (25 + 1) + 32 * (24 * 9 + 1) + 256 * (800 + 1) + 10 * (256 + 1)
PARAMETERS["dot_relu_dot"] = 2 * 1024**2
RUNNING_STATISTICS = {"convnet": 136, "text_mlp": 96}
CLASSES = {"images": 10, "tfidf": 2, "tokens": 2}


@pytest.fixture(scope="module")
def states():
    return {model: create_state(Task(build(MODELS[model]), optax.sgd(0.1))) for model in MODELS}


@pytest.mark.parametrize("model", MODELS)
def test_numbers_of_parameters_and_running_statistics(model, states):
    assert count_parameters(states[model].params) == PARAMETERS[model]
    assert sum(leaf.size for leaf in jax.tree.leaves(states[model].model_state)) == RUNNING_STATISTICS.get(model, 0)


@quick(3, "model", CLASSIFIERS)
def test_logits_have_one_column_a_class(model):
    logits = MODELS[model](rngs=nnx.Rngs(0))(jnp.asarray(random_split_for(model, 6).inputs))
    assert logits.shape == (6, CLASSES[featurizer_of(MODELS[model])])
    assert logits.dtype == jnp.float32


@quick(2, "model", CLASSIFIERS)
def test_initial_parameters_follow_from_the_seed(model, states):
    again = create_state(Task(build(MODELS[model]), optax.sgd(0.1)))
    other = create_state(Task(build(MODELS[model], 1), optax.sgd(0.1), seed=1))
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
    task, params = Task(build(MODELS["mlp"]), optax.sgd(0.1)), states["mlp"].params
    model = task.model_with(params, {})
    loss, _ = numpy_mlp.loss_and_gradients(params, SPLIT.inputs, SPLIT.labels)
    losses = optax.softmax_cross_entropy_with_integer_labels(model(jnp.asarray(SPLIT.inputs)), SPLIT.labels)
    assert float(losses.mean()) == pytest.approx(loss, rel=1e-6)


def test_cnn_equals_plain_convolution_and_pooling(states):
    params = states["cnn"].params
    model = Task(build(MODELS["cnn"]), optax.sgd(0.1)).model_with(params, {})
    x = plain_convnet.convolve(SPLIT.inputs / np.float32(255), params["conv"]["kernel"], 1, "VALID")
    x = reduce_window_pool(jnp.maximum(x + params["conv"]["bias"], 0)).reshape(6, -1)
    x = jnp.maximum(x @ params["hidden"]["kernel"] + params["hidden"]["bias"], 0)
    wanted = x @ params["logits"]["kernel"] + params["logits"]["bias"]
    np.testing.assert_allclose(model(jnp.asarray(SPLIT.inputs)), wanted, atol=1e-5)


@pytest.mark.slow
def test_padded_convnet_equals_the_plain_one_on_the_exact_batch(states):
    """Logits and running statistics of 5 examples and 3 rows of padding, against the 5 alone."""
    state = jax.device_put(states["convnet"])
    model = Task(build(MODELS["convnet"]), optax.sgd(0.1)).model_with(state.params, state.model_state)
    images = np.concatenate([SPLIT.inputs[:5], random_split(3, seed=4).inputs])
    keys = example_keys(0, jnp.int32(2), jnp.arange(8))
    weights = jnp.asarray([1, 1, 1, 1, 1, 0, 0, 0], jnp.float32)
    logits = model(jnp.asarray(images), Context(weights, keys, 2, train=True))

    masks = jnp.stack([plain_convnet.dropout_mask(0, 2, index) for index in range(5)])
    wanted, moments = plain_convnet.forward(state.params, SPLIT.inputs[:5], masks)
    np.testing.assert_allclose(logits[:5], wanted, atol=1e-5)
    for layer in plain_convnet.NORM_LAYERS:
        mean, variance = moments[layer]
        found = getattr(model, layer)
        np.testing.assert_allclose(found.mean[...], mean / 3, atol=1e-6)
        np.testing.assert_allclose(found.variance[...], 2 / 3 + variance / 3, atol=1e-6)


@pytest.mark.parametrize("layer", ["conv1", "conv2", "large_k"])
def test_no_bias_stands_before_batch_norm(states, layer):
    """Its gradient would be rounding, which differs between numbers of devices, and which Adam would amplify."""
    assert set(states["convnet"].params[layer]) == {"kernel"}


def reduce_window_pool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


@pytest.mark.parametrize("shape", [(16, 4, 4, 3), (16, 2, 2, 70), (64, 3)])
def test_batch_norm_equals_numpy_also_for_a_large_mean(shape):
    """A mean of 1,000 and a spread of 1: E[x^2] - E[x]^2 in float32 would be wrong in the first digit. The first update
    brings the running mean near, from where the moments are taken."""
    batches = np.random.default_rng(0).normal(1000, 1, (2, *shape)).astype(np.float32)
    layer, axes = BatchNorm(shape[-1]), tuple(range(len(shape) - 1))
    for step, x in enumerate(batches):
        y = layer(jnp.asarray(x), Context(step=step, train=True))
    wide = batches.astype(np.float64)
    mean, variance = zip(*((x.mean(axes), x.var(axes)) for x in wide), strict=True)
    np.testing.assert_allclose(y, (wide[1] - mean[1]) / np.sqrt(variance[1] + 1e-3), atol=2e-3)
    np.testing.assert_allclose(layer.mean[...], np.mean(mean, 0), rtol=1e-6)


@pytest.mark.parametrize("away", [0, 0.5, 2, 10])
def test_variance_keeps_its_digits_near_the_running_mean(away):
    """The mean `away` standard deviations from the running mean: its square times the rounding of float32, 1.2e-7, is
    lost. Against float64."""
    x = np.random.default_rng(0).normal(away, 1, (16, 8, 8, 4)).astype(np.float32)
    mean, variance = BatchNorm(4).moments(jnp.asarray(x), Context(train=True))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(mean, wide.mean((0, 1, 2)), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(variance, wide.var((0, 1, 2)), rtol=1e-6 * (1 + away**2))


@pytest.mark.parametrize(("step", "kept"), [(0, 0), (1, 1 / 2), (4, 4 / 5), (1000, 0.99)])
def test_running_statistics_are_the_mean_of_all_batches_then_of_the_last_hundred(step, kept):
    layer = BatchNorm(1, momentum=0.99)
    layer(jnp.asarray([[3.0], [7.0]]), Context(step=step, train=True))  # mean 5, variance 4
    np.testing.assert_allclose([layer.mean[0], layer.variance[0]], [(1 - kept) * 5, kept + (1 - kept) * 4], rtol=1e-5)


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


def test_gradient_of_batch_norm_is_that_of_its_formula(float64):
    """Against the derivative of the moments' definition, in float64, with one example of weight 0."""
    random = np.random.default_rng(4)
    x, weights = random.normal(3.0, 2.0, size=(6, 5, 4, 3)), jnp.asarray([1.0, 1, 0, 1, 1, 1])
    into = random.normal(size=x.shape)  # also into the padding: the formula must hold for any loss

    def by_definition(x):
        w = weights[:, None, None, None]
        mean = (w * x).sum((0, 1, 2)) / (5 * 20)
        variance = (w * (x - mean) ** 2).sum((0, 1, 2)) / (5 * 20)
        return (into * (x - mean) / jnp.sqrt(variance + 1e-3)).sum()

    def by_layer(x):
        return (into * BatchNorm(3, param_dtype=jnp.float64)(x, Context(weights, train=True))).sum()

    np.testing.assert_allclose(jax.grad(by_layer)(x), jax.grad(by_definition)(x), rtol=0, atol=1e-12)


@quick(
    2,
    ("size", "kernel", "padding"),
    [((28, 28), (6, 6), "VALID"), ((12, 12), (6, 6), "SAME"), ((8, 6), (2, 4), "VALID"), ((8, 10), (4, 2), "SAME")],
)
def test_convolution_on_blocks_is_convolution_at_stride_two(float64, size, kernel, padding):
    random = np.random.default_rng(0)
    x, k = random.normal(size=(3, *size, 5)), random.normal(size=(*kernel, 5, 7))

    def flax_layer(convolve):
        options = {"strides": 2, "padding": padding, "use_bias": False, "conv_general_dilated": convolve}
        layer = nnx.Conv(5, 7, kernel, **options, param_dtype=jnp.float64, rngs=nnx.Rngs(0))
        return lambda x, k: nnx.merge(nnx.graphdef(layer), {"kernel": k})(x)

    wanted, their_gradients = jax.vjp(flax_layer(lax.conv_general_dilated), x, k)
    found, our_gradients = jax.vjp(flax_layer(convolve_blocks), x, k)
    weights = random.normal(size=wanted.shape)
    for ours, theirs in zip((found, *our_gradients(weights)), (wanted, *their_gradients(weights)), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12 * np.abs(theirs).max())
