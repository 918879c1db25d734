"""The networks are as their sources have them.

Sizes, initial values, and outputs against plain programs.
"""

import entry
import jax
import jax.numpy as jnp
import numpy as np
import numpy_mlp
import optax
import pytest
from flax import nnx
from jax import lax

from pmapdp.layers import Context, example_keys, use_context
from pmapdp.models.cnn import max_pool
from pmapdp.models.speedrun import Speedrun, move
from pmapdp.registry import MODELS
from pmapdp.state import build

SPLIT = entry.examples_for("cnn", 6, 0)
# Of the transformer: embeddings; twice two norms, four projections with biases and the
# MLP; norm and logits.
BLOCK = 4 * 64 + 4 * (64 * 64 + 64) + 64 * 128 + 128 + 128 * 64 + 64
PARAMETERS = {
    "mlp": 669_706,
    "cnn": 347_146,
    "convnet": 49_210,
    "text_mlp": 57_746,
    "transformer": (8192 + 128) * 64 + 2 * BLOCK + 2 * 64 + 64 * 2 + 2,
    "speedrun": 24 * (25 + 1) + 32 * (24 * 9 + 1) + 256 * (800 + 1) + 10 * (256 + 1),
    "dot_relu_dot": 2 * 1024**2,
}


def built(name):
    """The model as it starts, and its parameters."""
    model = build(MODELS[name])
    return model, nnx.to_pure_dict(nnx.state(model, nnx.Param))


def call(model, inputs):
    """Compiled anew each time, as the context is part of the program.

    Running statistics are moved.
    """
    return nnx.jit(lambda model, inputs: model(inputs))(model, jnp.asarray(inputs))


def in_training(keys, weights=None):
    return use_context(Context(weights, keys, 2, train=True))


@pytest.mark.parametrize("model", MODELS)
def test_numbers_of_parameters(model):
    params = nnx.state(
        nnx.eval_shape(lambda: MODELS[model](rngs=nnx.Rngs(0))), nnx.Param
    )
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == PARAMETERS[model]


def test_mlp_starts_as_in_the_blog_and_equals_numpy():
    model, params = built("mlp")
    # 401,408 draws.
    assert params["hidden1"]["kernel"].std() == pytest.approx(0.01, rel=0.01)
    assert not params["hidden1"]["bias"].any()
    loss, _ = numpy_mlp.loss_and_gradients(params, SPLIT.inputs, SPLIT.labels)
    logits = call(model, SPLIT.inputs)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, SPLIT.labels)
    assert float(losses.mean()) == pytest.approx(loss, rel=1e-6)


def convolve(x, kernel, stride, padding):
    return lax.conv_general_dilated(
        x, kernel, (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def linear(x, p):
    return x @ p["kernel"] + p["bias"]


def test_cnn_equals_plain_convolution_and_pooling():
    model, p = built("cnn")
    limit = np.sqrt(6 / (5408 + 64))  # Keras's initial values, Glorot uniform
    assert 0.95 * limit < np.abs(p["hidden"]["kernel"]).max() <= limit
    x = convolve(SPLIT.inputs / np.float32(255), p["conv"]["kernel"], 1, "VALID")
    x = flax_max_pool(jnp.maximum(x + p["conv"]["bias"], 0)).reshape(6, -1)
    wanted = linear(np.maximum(linear(x, p["hidden"]), 0), p["logits"])
    np.testing.assert_allclose(call(model, SPLIT.inputs), wanted, atol=1e-5)


def test_convnet_equals_plain_convolutions():
    """With its first running statistics, mean 0 and variance 1."""
    model, p = built("convnet")
    x = SPLIT.inputs / np.float32(255)
    for conv, norm, *how in (
        ("conv1", "norm1", 1, "SAME"),
        ("conv2", "norm2", 2, "VALID"),
        ("large_k", "norm3", 2, "SAME"),
    ):
        x = np.maximum(
            convolve(x, p[conv]["kernel"], *how) / np.sqrt(1.001) + p[norm]["bias"], 0
        )
    wanted = linear(np.maximum(linear(x.mean((1, 2)), p["hidden"]), 0), p["logits"])
    np.testing.assert_allclose(call(model, SPLIT.inputs), wanted, atol=1e-5)


# Max-pooling


def flax_max_pool(x):
    return nnx.max_pool(x, (2, 2), strides=(2, 2))


RANDOM = np.random.default_rng(0)
POOLED = {
    "all different": RANDOM.permutation(2 * 7 * 6 * 3).reshape(2, 7, 6, 3),
    "many equal": RANDOM.integers(0, 2, (4, 16, 17, 3)),
    "no numbers": RANDOM.choice(
        [np.nan, -np.inf, np.inf, -0.0, 0.0, 1.0], (4, 16, 16, 3)
    ),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, "float32") for name in POOLED), ("many equal", "bfloat16")],
)
def test_max_pool_and_its_gradient_are_flaxs(name, dtype):
    """So is pooling before a ReLU, unless a number is 0."""
    x = jnp.asarray(POOLED[name], dtype)

    @jax.jit
    def both(x, weights):
        wanted, theirs = jax.vjp(flax_max_pool, x)
        found, ours = jax.vjp(max_pool, x)
        before, after = (
            jax.grad(lambda x, pool=pool: (weights * pool(x - 0.5)).sum())(x)
            for pool in (
                lambda x: nnx.relu(max_pool(x)),
                lambda x: flax_max_pool(nnx.relu(x)),
            )
        )
        return (found, *ours(weights), before), (wanted, *theirs(weights), after)

    shape = jax.eval_shape(flax_max_pool, x).shape
    (found, *gradients), (wanted, *theirs) = both(
        x, jnp.asarray(np.random.default_rng(1).normal(size=shape), dtype)
    )
    np.testing.assert_array_equal(np.float32(found), np.float32(wanted))
    if not np.isnan(np.float32(x)).any():
        for mine, stock in zip(gradients, theirs, strict=True):
            np.testing.assert_array_equal(np.float32(mine), np.float32(stock))


# The speedrun's augmentation


def test_an_image_is_moved_by_at_most_so_many_pixels_in_both_directions():
    images = entry.examples_for("cnn", 200, 0).inputs
    found = np.asarray(
        move(jnp.asarray(images), example_keys(0, jnp.int32(3), jnp.arange(200)), 2)
    )
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2), (0, 0)))
    offsets = set()
    for number, image in enumerate(found):
        fitting = {
            (i, j)
            for i, j in np.ndindex(5, 5)
            if np.array_equal(padded[number, i : i + 28, j : j + 28], image)
        }
        assert fitting
        offsets |= fitting
    # 200 draws miss one of 25 with a probability of 0.7 %; the seed is fixed.
    assert len(offsets) == 25


def test_only_training_moves_images():
    images = SPLIT.inputs
    model = build(Speedrun)
    evaluated = call(model, images)
    with in_training(example_keys(0, jnp.int32(0), jnp.arange(6))):
        moved = call(model, images)
        model.pixels = 0
        np.testing.assert_array_equal(call(model, images), evaluated)
    assert not np.allclose(moved, evaluated, atol=1e-3)


# Texts, against NumPy in float64


def text_model(name):
    """The model, its parameters in float64, and inputs.

    No bias or scale is 0 or 1, so that each of them matters.
    """
    model, params = built(name)
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: np.float32(x + 0.1 * random.normal(size=x.shape)), params
    )
    nnx.update(model, params)
    return (
        model,
        jax.tree.map(np.float64, params),
        entry.examples_for(name, 8, 0).inputs,
    )


def test_text_mlp_equals_numpy():
    """In training, with moments over five examples whatever the padding holds.

    Then alone and in company.
    """
    model, p, inputs = text_model("text_mlp")
    with in_training(None, jnp.asarray([1, 1, 1, 1, 1, 0, 0, 0], jnp.float32)):
        logits = call(model, inputs)
    hidden = np.maximum(inputs[:5] @ p["hidden"]["kernel"] + p["hidden"]["bias"], 0)
    normed = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
    np.testing.assert_allclose(
        logits[:5], normed @ p["logits"]["kernel"] + p["logits"]["bias"], atol=1e-4
    )
    np.testing.assert_allclose(model.norm.mean[...], 0.1 * hidden.mean(0), atol=1e-6)
    np.testing.assert_allclose(
        model.norm.var[...], 0.9 + 0.1 * hidden.var(0), atol=1e-6
    )
    np.testing.assert_allclose(
        call(model, inputs)[:1], call(model, inputs[:1]), atol=1e-5
    )


def layer_norm(x, p):
    moments = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - moments[0]) / np.sqrt(moments[1] + 1e-6) * p["scale"] + p["bias"]


def transformer_logits(p, ids):
    """One text of `[length]` ids without padding, in NumPy.

    Attention as a loop over heads.
    """
    x = p["tokens"]["embedding"][ids] + p["positions"]["embedding"][: len(ids)]
    for block in (p["blocks"][number] for number in sorted(p["blocks"])):
        y = layer_norm(x, block["attention_norm"])
        attention = block["attention"]
        x = x + attention["out"]["bias"]
        for head in range(4):
            query, key, value = (
                y @ attention[name]["kernel"][:, head] + attention[name]["bias"][head]
                for name in ("query", "key", "value")
            )
            scores = np.exp(query @ key.T / np.sqrt(16))
            x = (
                x
                + scores
                / scores.sum(1, keepdims=True)
                @ value
                @ attention["out"]["kernel"][head]
            )
        y = (
            layer_norm(x, block["mlp_norm"]) @ block["hidden"]["kernel"]
            + block["hidden"]["bias"]
        )
        # GELU, as Hendrycks and Gimpel have it.
        y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + y @ block["output"]["kernel"] + block["output"]["bias"]
    return (
        layer_norm(x, p["norm"]).mean(0) @ p["logits"]["kernel"] + p["logits"]["bias"]
    )


def test_transformer_equals_numpy_and_drops_the_examples_words():
    """On texts of different lengths; an empty one has an answer.

    In training it depends on the example's key alone.
    """
    model, p, inputs = text_model("transformer")
    inputs = np.where(np.arange(16) < [[5], [16], [9], [1]], inputs[:4].max(0), 0)
    *evaluated, empty = call(model, np.concatenate([inputs, 0 * inputs[:1]]))
    np.testing.assert_allclose(
        evaluated, [transformer_logits(p, ids[ids > 0]) for ids in inputs], atol=1e-4
    )
    np.testing.assert_allclose(empty, p["logits"]["bias"], rtol=1e-6)
    keys = jax.random.split(jax.random.key(0), 4)
    with in_training(jnp.concatenate([keys, keys[::-1], keys[::-1]])):
        logits, same, others = call(
            model, np.concatenate([inputs, inputs[::-1], inputs])
        ).reshape(3, 4, -1)
    np.testing.assert_allclose(same, logits[::-1], atol=1e-5)
    assert np.abs(logits - others).max(1).min() > 1e-3


# Names of axes


AXES = {
    "text_mlp": {"hidden.kernel": ("features", "hidden"), "logits.bias": ("classes",)},
    "transformer": {
        "blocks.1.attention.query.kernel": ("embed", "heads", "head"),
        "blocks.0.attention.out.kernel": ("heads", "head", "embed"),
        "tokens.embedding": ("vocabulary", "embed"),
    },
}


@pytest.mark.parametrize("model", AXES)
def test_every_axis_of_a_parameter_has_its_name(model):
    """As Flax keeps them, found without any mesh; `tests/sharding` splits by them."""
    params = nnx.to_flat_state(
        nnx.state(nnx.eval_shape(lambda: MODELS[model](rngs=nnx.Rngs(0))), nnx.Param)
    )
    names = {
        ".".join(map(str, path)): param.get_metadata("out_sharding")
        for path, param in params
    }
    assert [len(axes) for axes in names.values()] == [
        len(param.shape) for _, param in params
    ]
    assert all(len({*axes}) == len(axes) for axes in names.values())
    assert AXES[model].items() <= names.items()
