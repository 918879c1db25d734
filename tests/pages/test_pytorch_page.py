"""docs/pytorch.md: each row of its tables gives PyTorch's numbers.

The code in the second column is compared with PyTorch's answer to the first column's.
`tests/support/pytorch_answers.py` stores these answers.
"""

import dataclasses
import json
import operator
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import pytorch_answers
from flax import nnx
from pytorch_answers import PAGE, STORED

from pmapdp.config import Config
from pmapdp.custom.data import make_data_set
from pmapdp.data.batches import Batch
from pmapdp.distributed import ProcessesOptions
from pmapdp.flags import read_flags
from pmapdp.loss import MetricSums, metric_sums
from pmapdp.optimizer import make_optimizer
from pmapdp.train import COMMAND, train

ANSWERS = json.loads(STORED.read_text())
LAYERS = pytorch_answers.rows("Layers")
LOSSES = pytorch_answers.rows("Losses")
LOOP = PAGE.with_name("pytorch_loop.md").read_text(encoding="utf-8")
TEXT = PAGE.read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
BLOCK: dict = {}  # the names of the programs before the losses
for program in PROGRAMS[:3]:
    exec(program, BLOCK)


@pytest.mark.torch
def test_the_stored_answers_are_those_of_pytorch():
    pytest.importorskip("torch", reason="PyTorch is not installed")
    stored = jax.tree.leaves(ANSWERS)
    computed = jax.tree.leaves(pytorch_answers.answers())
    np.testing.assert_allclose(stored, computed, rtol=1e-4, atol=1e-5)


def test_every_row_has_an_answer():
    for heading in ("Layers", "Losses", "Optimizers", "Schedules"):
        assert ANSWERS[heading].keys() == pytorch_answers.rows(heading).keys()
    assert ANSWERS["Layers"].keys() == pytorch_answers.INPUTS.keys()
    assert ANSWERS["Losses"].keys() == pytorch_answers.ARRAYS.keys()


def copy_weights(layer, weights: dict[str, np.ndarray]) -> None:
    """Copy a PyTorch layer's state_dict into the layer of the page."""
    if isinstance(layer, nnx.Linear):
        layer.kernel.set_value(weights["weight"].T)
        layer.bias.set_value(weights["bias"])
    elif isinstance(layer, nnx.Conv):
        layer.kernel.set_value(weights["weight"].transpose(2, 3, 1, 0))
        layer.bias.set_value(weights["bias"])
    elif isinstance(layer, nnx.ConvTranspose):
        kernel = weights["weight"].transpose(2, 3, 0, 1)
        layer.kernel.set_value(kernel[::-1, ::-1])
        layer.bias.set_value(weights["bias"])
    elif isinstance(layer, nnx.Embed):
        layer.embedding.set_value(weights["weight"])
    elif isinstance(layer, nnx.MultiHeadAttention):
        BLOCK["copy_attention"](layer, *weights.values())
    elif isinstance(layer, nnx.RNN):
        copy_recurrent(layer.cell, weights)
    else:  # a norm
        layer.scale.set_value(weights["weight"])
        layer.bias.set_value(weights["bias"])
    if isinstance(layer, nnx.BatchNorm):
        layer.mean.set_value(weights["running_mean"])
        layer.var.set_value(weights["running_var"])


def copy_recurrent(cell, weights):
    """Copy an LSTM or a GRU of one layer. Their gates have the same order."""
    bias = weights["bias_ih_l0"] + weights["bias_hh_l0"]
    cell.dense_i.kernel.set_value(weights["weight_ih_l0"].T)
    cell.dense_h.kernel.set_value(weights["weight_hh_l0"].T)
    if isinstance(cell, nnx.OptimizedLSTMCell):
        cell.dense_h.bias.set_value(bias)
    else:
        cell.dense_i.bias.set_value(bias)


def channels_last(x: np.ndarray) -> np.ndarray:
    if x.ndim == 4:
        return x.transpose(0, 2, 3, 1)
    return x


def make_layer(cell: str):
    """Evaluate the page's code, with PyTorch's weights copied; an array is returned as
    it is.
    """
    x = channels_last(pytorch_answers.draw_input(cell))
    layer = eval(LAYERS[cell], {"nnx": nnx, "x": x, "rngs": nnx.Rngs(0)})
    if isinstance(layer, nnx.Module):
        shapes = ANSWERS["Layers"][cell]["shapes"]
        copy_weights(layer, pytorch_answers.draw_weights(shapes))
    return layer, x


@pytest.mark.parametrize("cell", LAYERS)
def test_a_layer_answers_as_in_pytorch(cell):
    layer, x = make_layer(cell)
    answer = layer
    if isinstance(layer, nnx.Module):
        layer.eval()
        answer = layer(x)
    expected = np.array(ANSWERS["Layers"][cell]["answer"], np.float32)
    np.testing.assert_allclose(answer, channels_last(expected), rtol=1e-4, atol=1e-5)


def test_the_weights_of_a_layer_go_back_to_pytorch():
    """Bit for bit as they came, and as safetensors needs them in memory."""
    types = (nnx.Linear, nnx.Conv, nnx.Embed, nnx.BatchNorm, nnx.LayerNorm)
    types += (nnx.GroupNorm,)
    tested = 0
    for cell in LAYERS:
        layer, _ = make_layer(cell)
        if isinstance(layer, types):
            tested += 1
            shapes = ANSWERS["Layers"][cell]["shapes"]
            back = BLOCK["state_dict"](layer)
            assert all(values.flags.c_contiguous for values in back.values())
            expected = pytorch_answers.draw_weights(shapes)
            jax.tree.map(np.testing.assert_array_equal, back, expected)
    assert tested == len(types)


def test_a_mask_of_attention_says_where_to_look():
    layer, x = make_layer("nn.MultiheadAttention(8, 2, batch_first=True)")
    answer = layer(x, mask=nnx.make_causal_mask(x[..., 0]), deterministic=True)
    expected = ANSWERS["causal attention"]
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


def test_a_transformer_block_answers_as_in_pytorch():
    """The weights are copied, and the page has their names and shapes."""
    shapes = ANSWERS["transformer block"]["shapes"]
    block = BLOCK["Block"](8, 2, 16, rngs=nnx.Rngs(0))
    BLOCK["copy_block"](block, pytorch_answers.draw_weights(shapes))
    x = pytorch_answers.draw_input("nn.MultiheadAttention(8, 2, batch_first=True)")
    expected = ANSWERS["transformer block"]["answer"]
    np.testing.assert_allclose(block(x), expected, rtol=1e-4, atol=1e-5)
    table = TEXT.partition("## A transformer block")[2].partition("```python\ndef")[0]
    sizes = {"3 D": 24, "D": 8, "H": 16, "heads": 2, "d": 4}
    cells = re.findall(r"((?:`[\w.]+`(?:, )?)+) `\[(.*?)\]`", table)
    assert len(cells) == 14
    for names, axes in cells:
        shape = [sizes[axis] for axis in axes.split(", ")]
        for name in re.findall(r"[\w.]+", names):
            if name in shapes:
                assert shapes[name] == shape, name
                continue
            owner = block.attention if name.startswith(("key", "value")) else block
            assert list(operator.attrgetter(name)(owner).shape) == shape, name


def test_running_statistics_differ_by_the_divisor():
    cell = "nn.BatchNorm2d(8)"
    x = channels_last(pytorch_answers.draw_input(cell))
    norm = eval(LAYERS[cell], {"nnx": nnx, "rngs": nnx.Rngs(0)})
    norm(x)
    n = x.size / x.shape[-1]
    mean, var = ANSWERS["running statistics"].values()
    np.testing.assert_allclose(norm.mean[...], mean, rtol=1e-4)
    unbiased = 0.9 + (norm.var[...] - 0.9) * n / (n - 1)
    np.testing.assert_allclose(unbiased, var, rtol=1e-4)


def test_dropout_divides_what_it_keeps_as_pytorch_does():
    dropped = nnx.Dropout(0.1, rngs=nnx.Rngs(0))(jnp.ones(1000))
    kept = dropped[dropped > 0]
    assert 850 < len(kept) < 950
    np.testing.assert_allclose(kept, 1 / 0.9, rtol=1e-6)


def test_an_id_outside_an_embeddings_table_gives_nan():
    embed = nnx.Embed(100, 8, rngs=nnx.Rngs(0))
    assert np.isnan(embed(jnp.array([100]))).all()


def loss_of_the_page(cell: str) -> MetricSums:
    """Run a row's loss on the arrays of its answer, and as much padding."""
    outputs, labels = pytorch_answers.draw_arrays(pytorch_answers.ARRAYS[cell])
    n = len(labels)
    padding = np.arange(n) % 2
    weights = np.concatenate([np.ones(n), np.zeros(n)]).astype(np.float32)
    inputs = np.concatenate([outputs, outputs[padding]])
    batch = Batch(inputs, np.concatenate([labels, labels[padding]]), None, weights)
    w = pytorch_answers.CLASS_WEIGHTS
    names: dict = {"optax": optax, "jax": jax, "w": w, "p": w}
    exec(program_of_the_page(cell), names)
    return names["loss"](lambda inputs: inputs, batch)


def program_of_the_page(cell: str) -> str:
    """Return the page's loss with a row's lines."""
    program = replace(
        PROGRAMS[-1], "jnp.square(outputs - labels).mean(-1)", LOSSES[cell]
    )
    row = next(line for line in TEXT.splitlines() if line.startswith(f"| `{cell}` "))
    if found := re.search(r"`weights = (batch\.weights[^`]*)`", row):
        program = replace(program, "weights = batch.weights", f"weights = {found[1]}")
    return program


def replace(program: str, old: str, new: str) -> str:
    assert program.count(old) == 1
    return program.replace(old, new)


@pytest.mark.parametrize("cell", LOSSES)
def test_a_loss_is_pytorchs(cell):
    sums = loss_of_the_page(cell)
    mean = float(sums.loss / sums.count)
    assert mean == pytest.approx(ANSWERS["Losses"][cell], rel=1e-5)


def test_weights_in_the_data_are_those_of_pytorchs_loss():
    cell = "CrossEntropyLoss(weight=w)"
    outputs, labels = pytorch_answers.draw_arrays("classes")
    by_class = dict(enumerate(pytorch_answers.CLASS_WEIGHTS.tolist()))
    split = make_data_set({"train": (outputs, labels, by_class)}).train
    batch = Batch(outputs, split.labels, None, split.weights)
    sums = metric_sums(jnp.array(outputs), batch)
    mean = float(sums.loss / sums.count)
    assert mean == pytest.approx(ANSWERS["Losses"][cell], rel=1e-5)


def test_an_ignored_label_alone_makes_the_loss_nan():
    ignored = np.array([-100])
    losses = optax.softmax_cross_entropy_with_integer_labels(np.ones((1, 3)), ignored)
    assert np.isnan(0 * losses).all()


@pytest.mark.parametrize("cell", pytorch_answers.rows("Schedules"))
def test_a_schedule_is_pytorchs(cell):
    code = pytorch_answers.rows("Schedules")[cell]
    schedule = eval(code, {"optax": optax, "f": pytorch_answers.falling})
    rates = jax.vmap(schedule)(jnp.arange(pytorch_answers.UPDATES))
    expected = ANSWERS["Schedules"][cell]
    np.testing.assert_allclose(rates, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("cell", pytorch_answers.rows("Optimizers"))
def test_an_optimizer_is_pytorchs(cell):
    code = pytorch_answers.rows("Optimizers")[cell]
    rate = optax.constant_schedule(pytorch_answers.RATE)
    rule = eval(code, {"optax": optax, "schedule": rate})
    params = jnp.array(pytorch_answers.START)
    state = rule.init(params)
    for _ in range(5):
        gradient = pytorch_answers.CURVATURE * params
        updates, state = rule.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    expected = ANSWERS["Optimizers"][cell]
    np.testing.assert_allclose(params, expected, rtol=1e-4, atol=1e-6)


def test_clipping_is_pytorchs():
    config = Config(clip_norm=1, optimizer="sgd")
    rule = make_optimizer(config, optax.constant_schedule(1.0))
    gradient = jnp.array([3.0, 4.0])
    updates, _ = rule.update(gradient, rule.init(gradient))
    np.testing.assert_allclose(-updates, ANSWERS["clipped gradient"], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("cell", [cell for cell in LAYERS if "_first" in cell])
def test_a_model_with_attention_or_recurrence_trains(cell):
    """Nothing in these layers is refused."""

    class Net(nnx.Module):
        def __init__(self, *, rngs):
            self.layer = eval(LAYERS[cell], {"nnx": nnx, "rngs": rngs})
            self.logits = nnx.Linear(8 if "Attention" in cell else 4, 3, rngs=rngs)

        def __call__(self, x):
            return self.logits(self.layer(x)[:, -1])

    x = np.random.default_rng(0).normal(size=(64, 5, 8)).astype(np.float32)
    data = {"train": (x, x[:, -1, :3].argmax(1))}
    config = Config(strategy="jit", epochs=4, progress=False, compile_cache=False)
    epochs = train(config, model=Net, data=data).epochs
    assert epochs[-1]["train"]["loss"] < epochs[0]["train"]["loss"]


@pytest.mark.slow
def test_a_loss_over_tokens_that_ignores_some_trains():
    """The checks before training take labels of -100."""
    cell = "CrossEntropyLoss(ignore_index=-100)"
    program = program_of_the_page(cell)
    names: dict = {"optax": optax}
    exec(program, names)
    tokens = np.random.default_rng(0).integers(0, 3, (64, 5))
    labels = np.where(tokens == 0, -100, tokens)

    def make_model(rngs):
        return nnx.Embed(3, 3, rngs=rngs)

    config = Config(strategy="jit", epochs=4, progress=False, compile_cache=False)
    data = {"train": (tokens, labels)}
    epochs = train(config, model=make_model, data=data, loss=names["loss"]).epochs
    assert epochs[-1]["train"]["loss"] < epochs[0]["train"]["loss"]


def test_the_flags_beside_those_of_lightning_are_taken():
    table = LOOP.partition("## If you use Lightning")[2]
    cells = re.findall(r"^\|.*\| (.*) \|$", table, re.MULTILINE)
    fields = [*dataclasses.fields(Config), *dataclasses.fields(ProcessesOptions)]
    commands = [flags for cell in cells for flags in re.findall(r"`(--[^`]*)`", cell)]
    assert len(commands) > 12
    for flags in commands:
        assert read_flags(COMMAND, fields, flags.split(), {})
