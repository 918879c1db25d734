"""The text models against NumPy in float64, what padding and company change (nothing), and the names of axes."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from examples import random_split_for
from flax import nnx

from pmapdp.models.layers import Context
from pmapdp.registry import MODELS
from pmapdp.state import Task, TrainState, build, create_state


def state_of(model: str) -> TrainState:
    """Initial values, with biases and scales that are not all 0 or 1, so that each of them matters."""
    state = create_state(Task(build(MODELS[model], 1), optax.identity(), seed=1))
    generator = np.random.default_rng(0)
    params = jax.tree.map(lambda x: x + 0.1 * generator.normal(size=x.shape).astype(x.dtype), state.params)
    return TrainState(state.step, params, state.model_state, state.optimizer_state)


def model_of(model: str, state: TrainState) -> nnx.Module:
    return Task(build(MODELS[model])).model_with(*jax.device_put((state.params, state.model_state)))


def wide(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def test_text_mlp_in_training_equals_numpy():
    """Moments over the five examples, whatever stands in the padding; then what the running ones have become."""
    state, inputs = state_of("text_mlp"), random_split_for("text_mlp", 8).inputs
    model, p = model_of("text_mlp", state), wide(state.params)
    weights = jnp.asarray([1, 1, 1, 1, 1, 0, 0, 0], jnp.float32)
    logits = model(jnp.asarray(inputs), Context(weights, None, 3, train=True))

    hidden = np.maximum(inputs[:5] @ p["hidden"]["kernel"] + p["hidden"]["bias"], 0)
    normed = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
    np.testing.assert_allclose(logits[:5], normed @ p["logits"]["kernel"] + p["logits"]["bias"], atol=1e-4)
    np.testing.assert_allclose(model.norm.mean[...], hidden.mean(0) / 4, atol=1e-6)
    np.testing.assert_allclose(model.norm.variance[...], 0.75 + hidden.var(0) / 4, atol=1e-6)


def layer_norm(x, p):
    moments = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - moments[0]) / np.sqrt(moments[1] + 1e-6) * p["scale"] + p["bias"]


def transformer_logits(p, ids):
    """One text of `[length]` ids without padding, in NumPy: attention as a loop over heads."""
    x = p["tokens"]["embedding"][ids] + p["positions"]["embedding"][: len(ids)]
    for block in (p["blocks"][number] for number in sorted(p["blocks"])):
        y, attention = layer_norm(x, block["attention_norm"]), block["attention"]
        x = x + attention["out"]["bias"]
        for head in range(4):
            query, key, value = (
                y @ attention[name]["kernel"][:, head] + attention[name]["bias"][head]
                for name in ("query", "key", "value")
            )
            scores = np.exp(query @ key.T / np.sqrt(16))
            x = x + scores / scores.sum(1, keepdims=True) @ value @ attention["out"]["kernel"][head]
        y = layer_norm(x, block["mlp_norm"]) @ block["hidden"]["kernel"] + block["hidden"]["bias"]
        y = y / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))  # GELU, as Hendrycks and Gimpel have it
        x = x + y @ block["output"]["kernel"] + block["output"]["bias"]
    return layer_norm(x, p["norm"]).mean(0) @ p["logits"]["kernel"] + p["logits"]["bias"]


@pytest.fixture(scope="module")
def transformer():
    """Parameters, four texts of different lengths, and the compiled forward pass."""
    state = state_of("transformer")
    inputs = random_split_for("transformer", 4).inputs
    assert len({np.count_nonzero(ids) for ids in inputs}) == 4
    return state.params, inputs, jax.jit(model_of("transformer", state).__call__)


def test_transformer_equals_numpy_on_texts_without_padding(transformer):
    params, inputs, forward = transformer
    wanted = [transformer_logits(wide(params), ids[ids > 0]) for ids in inputs]
    np.testing.assert_allclose(forward(inputs, Context()), wanted, atol=1e-4)


def test_an_empty_text_has_an_answer(transformer):
    """The mean of no token is 0, so that the bias is left."""
    params, inputs, forward = transformer
    np.testing.assert_array_equal(forward(0 * inputs, Context())[0], params["logits"]["bias"])


def test_dropped_words_are_those_of_the_example(transformer):
    """In training the answer depends on the key of the example, and not on its place in the batch."""
    _, inputs, forward = transformer
    keys, weights = jax.random.split(jax.random.key(0), 4), jnp.ones(4)
    logits = forward(inputs, Context(weights, keys, train=True))
    back = forward(inputs[::-1], Context(weights, keys[::-1], train=True))
    np.testing.assert_allclose(logits, back[::-1], atol=1e-5)
    others = forward(inputs, Context(weights, keys[::-1], train=True))
    assert np.abs(logits - others).max(1).min() > 1e-3


def test_an_answer_of_text_mlp_does_not_depend_on_the_rest_of_the_batch():
    """The running moments are those of training, not of the batch. (For the transformer the test above shows it.)"""
    forward = jax.jit(model_of("text_mlp", state_of("text_mlp")).__call__)
    inputs = random_split_for("text_mlp", 5).inputs
    alone = np.concatenate([forward(inputs[row : row + 1]) for row in range(5)])
    np.testing.assert_allclose(forward(inputs), alone, atol=1e-5)


HEADS_AXES = {"kernel": ("embed", "heads", "head"), "bias": ("heads", "head")}
BLOCK_AXES = {
    "attention_norm": {"scale": ("embed",), "bias": ("embed",)},
    "attention": {
        "query": HEADS_AXES,
        "key": HEADS_AXES,
        "value": HEADS_AXES,
        "out": {"kernel": ("heads", "head", "embed"), "bias": ("embed",)},
    },
    "mlp_norm": {"scale": ("embed",), "bias": ("embed",)},
    "hidden": {"kernel": ("embed", "hidden"), "bias": ("hidden",)},
    "output": {"kernel": ("hidden", "embed"), "bias": ("embed",)},
}
AXES = {
    "text_mlp": {
        "hidden": {"kernel": ("features", "hidden"), "bias": ("hidden",)},
        "logits": {"kernel": ("hidden", "classes"), "bias": ("classes",)},
    },
    "transformer": {
        "tokens": {"embedding": ("vocabulary", "embed")},
        "positions": {"embedding": ("position", "embed")},
        "blocks": {0: BLOCK_AXES, 1: BLOCK_AXES},
        "norm": {"scale": ("embed",), "bias": ("embed",)},
        "logits": {"kernel": ("embed", "classes"), "bias": ("classes",)},
    },
}


@pytest.mark.parametrize("model", AXES)
def test_every_axis_of_a_parameter_has_its_name(model):
    """As Flax keeps them, found without any mesh; and there is one name an axis."""
    network = nnx.eval_shape(lambda: MODELS[model](rngs=nnx.Rngs(0)))
    params = nnx.state(network, nnx.Param)
    names = jax.tree.map(
        lambda param: param.get_metadata("out_sharding"), params, is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)
    )
    assert nnx.to_pure_dict(names) == AXES[model]
    shapes = jax.tree.leaves(nnx.to_pure_dict(params))
    axes = jax.tree.leaves(AXES[model], is_leaf=lambda leaf: isinstance(leaf, tuple))
    assert [len(shape.shape) for shape in shapes] == [len(each) for each in axes]
