"""Models of Flax's own layers keep contract 1 in float64: a ResNet, a recurrent network, a transformer, as others write
them; and every exchanged layer does what Flax's does where the two can be compared."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from marks import quick

from pmapdp.custom.checks import check_task
from pmapdp.custom.stock_layers import exchange, exchanged
from pmapdp.data.batches import Batches
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.job import make_strategy
from pmapdp.models.layers import Context
from pmapdp.sharding.layout import data_parallel
from pmapdp.state import Task, build, create_state

STRATEGIES = ("pmap", "shard_map", "jit")


class Residual(nnx.Module):
    def __init__(self, C, F, stride, *, rngs, **types):
        options = {"use_bias": False, "rngs": rngs, **types}
        self.conv1, self.norm1 = nnx.Conv(C, F, (3, 3), strides=stride, **options), nnx.BatchNorm(F, rngs=rngs, **types)
        self.conv2, self.norm2 = nnx.Conv(F, F, (3, 3), **options), nnx.BatchNorm(F, rngs=rngs, **types)
        self.short = nnx.Conv(C, F, (1, 1), strides=stride, **options) if (C, stride) != (F, 1) else None

    def __call__(self, x):
        y = self.norm2(self.conv2(nnx.relu(self.norm1(self.conv1(x)))))
        return nnx.relu(y + (x if self.short is None else self.short(x)))


class ResNet18(nnx.Module):
    """He et al., "Deep residual learning", CVPR 2016: eight blocks, here with few channels."""

    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        types = {"dtype": dtype, "param_dtype": param_dtype}
        self.stem = nnx.Conv(1, 4, (3, 3), use_bias=False, rngs=rngs, **types)
        self.norm = nnx.BatchNorm(4, rngs=rngs, **types)
        widths = [(4, 4, 1), (4, 4, 1), (4, 6, 2), (6, 6, 1), (6, 8, 2), (8, 8, 1), (8, 10, 2), (10, 10, 1)]
        self.blocks = nnx.List([Residual(*each, rngs=rngs, **types) for each in widths])
        self.head = nnx.Linear(10, 3, rngs=rngs, **types)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.stem(x)))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((1, 2)))


class LSTM(nnx.Module):
    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        types = {"dtype": dtype, "param_dtype": param_dtype}
        self.rnn = nnx.RNN(nnx.LSTMCell(4, 8, rngs=rngs, **types), rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs, **types)

    def __call__(self, x):  # [b, T, 4]
        return self.head(self.dropout(self.rnn(x)[:, -1]))


class Block(nnx.Module):
    def __init__(self, *, rngs, **types):
        self.norm = nnx.LayerNorm(8, rngs=rngs, **types)
        self.attention = nnx.MultiHeadAttention(2, 8, dropout_rate=0.2, decode=False, rngs=rngs, **types)
        self.mlp = nnx.Sequential(nnx.Linear(8, 16, rngs=rngs, **types), nnx.gelu, nnx.Dropout(0.3, rngs=rngs))
        self.out = nnx.Linear(16, 8, rngs=rngs, **types)

    def __call__(self, x):
        x = x + self.attention(self.norm(x))
        return x + self.out(self.mlp(x))


class ScannedTransformer(nnx.Module):
    """Two blocks by a scan over layers."""

    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        types = {"dtype": dtype, "param_dtype": param_dtype}
        self.embed = nnx.Linear(4, 8, rngs=rngs, **types)

        @nnx.split_rngs(splits=2)
        @nnx.vmap(in_axes=(0,), out_axes=0)
        def blocks(rngs):
            return Block(rngs=rngs, **types)

        self.blocks, self.head = blocks(rngs), nnx.Linear(8, 3, rngs=rngs, **types)

    def __call__(self, x):  # [b, T, 4]
        scan = nnx.scan(lambda x, block: block(x), in_axes=(nnx.Carry, 0), out_axes=nnx.Carry)
        return self.head(scan(self.embed(x), self.blocks).mean(1))


MODELS = {ScannedTransformer: (6, 4), LSTM: (5, 4), ResNet18: (8, 8, 1)}


def examples(shape) -> Split:
    random = np.random.default_rng(4)
    return Split(random.normal(size=(29, *shape)), random.integers(0, 3, 29).astype(np.int32))


def trained(strategy: str, task: Task, split: Split, N: int):
    """State after five updates on batches of 7 of 29 examples, the last of 1; and sums over all."""
    made = make_strategy(strategy, task, jax.devices()[:N], data_parallel(jax.devices()[:N]))
    state = create_state(task, made.state_sharding)
    for batch in Batches(split, 7, devices=N, shuffle_seed=2).epoch(0):
        state, _ = made.train_step(state, made.place_batch(batch))
    (batch,) = Batches(split, 29, devices=N).epoch(0)
    return made.fetch((state, made.eval_step(state, made.place_batch(batch))))


@pytest.fixture(scope="module")
def references():
    return {}


@pytest.mark.usefixtures("float64")
@quick(1, "strategy", STRATEGIES)
@quick(1, "N", [3, 1, 8], by_day=1)
@quick(1, "model", MODELS)
def test_models_of_stock_layers_equal_one_device(references, model, N, strategy):
    """Parameters and running moments after five updates, and the sums of an evaluation, within 1e-10."""
    split = examples(MODELS[model])
    task = Task(exchange(build(model, 1, "float64")), optax.sgd(0.1), 1, "float64")
    if model not in references:
        references[model] = trained("single", task, split, 1)
    for a, b in zip(
        jax.tree.leaves(references[model]), jax.tree.leaves(trained(strategy, task, split, N)), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)


def in_training(n: int) -> Context:
    return Context(np.ones(n, np.float32), jax.random.split(jax.random.key(0), n), 0, train=True)


def test_global_batch_norm_is_flaxs_on_one_device_without_padding():
    """Output and running moments, with the features on another axis, within 1e-5 in float32."""
    x = np.random.default_rng(0).normal(2, 3, (6, 5, 4)).astype(np.float32)
    settings = {"axis": 1, "momentum": 0.8, "epsilon": 1e-3}
    stock, ours = (nnx.BatchNorm(5, rngs=nnx.Rngs(0), **settings) for _ in range(2))
    exchange(nnx.Sequential(ours))
    with in_training(6).entered():
        np.testing.assert_allclose(ours(x), stock(x), atol=1e-5)
    np.testing.assert_allclose(ours.mean[...], stock.mean[...], atol=1e-5)
    np.testing.assert_allclose(ours.var[...], stock.var[...], rtol=1e-5)
    np.testing.assert_allclose(ours(x), stock(x, use_running_average=True), atol=1e-5)  # in evaluation


def test_frozen_layers_stay_frozen():
    norm, dropout = nnx.BatchNorm(3, use_running_average=True, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, deterministic=True)
    exchange(nnx.Sequential(norm, dropout))
    x = jnp.asarray([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0]])
    with in_training(2).entered():
        np.testing.assert_allclose(dropout(norm(x)), x / np.sqrt(1 + 1e-5), rtol=1e-6)
    assert not norm.mean[...].any()


def test_masks_differ_between_layers_and_examples_and_scanned_layers():
    class Two(nnx.Module):
        def __init__(self, *, rngs):
            self.one, self.other = (nnx.Dropout(0.5, rngs=rngs) for _ in range(2))

            @nnx.split_rngs(splits=2)
            @nnx.vmap(in_axes=(0,), out_axes=0)
            def dropouts(rngs):
                return nnx.Dropout(0.5, rngs=rngs)

            self.scanned = dropouts(rngs)

    model = exchange(Two(rngs=nnx.Rngs(0)))
    ones = jnp.ones((2, 500))
    with in_training(2).entered():
        carry = nnx.scan(lambda x, layer: (x, layer(x)), in_axes=(nnx.Carry, 0), out_axes=(nnx.Carry, 0))
        seen = [model.one(ones), model.other(ones), *carry(ones, model.scanned)[1]]
    rows = [np.asarray(row) for each in seen for row in each]
    assert len(rows) == 8
    for i, row in enumerate(rows):
        assert set(np.unique(row)) == {0.0, 2.0}
        for other in rows[:i]:
            assert 0.4 < (row == other).mean() < 0.6  # independent: half of 500, the standard deviation is 0.022


@pytest.mark.slow
def test_the_header_names_what_was_exchanged():
    text = exchanged(exchange(build(ScannedTransformer)))
    assert text == "1 Dropout per example, 1 MultiHeadAttention with dropout per example"
    assert exchanged(exchange(build(ResNet18))) == "17 BatchNorm over the global batch"


class Noise(nnx.Module):
    """Draws for itself."""

    def __init__(self, *, rngs):
        self.noise, self.out = rngs.noise.fork(), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(x + jax.random.normal(self.noise(), x.shape))


class TimeMajor(nnx.Module):
    def __init__(self, *, rngs):
        self.dropout, self.out = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(x.swapaxes(0, 1))[0])


class Sows(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x):
        y = self.out(x)
        self.sow(nnx.Intermediate, "seen", y)
        return y


@pytest.mark.parametrize(
    ("model", "shape", "fragments"),
    [
        (Noise, (4,), ["Noise draws random numbers from noise", "context.keys"]),
        (TimeMajor, (5, 4), ["TimeMajor fails in training", "first axis is not that of the examples"]),
        (Sows, (4,), ["Sows makes the variable seen.0 in training", "leave nnx.sow out"]),
    ],
)
def test_what_cannot_be_exchanged_is_refused_by_its_name(model, shape, fragments):
    split = examples(shape)._replace(inputs=examples(shape).inputs.astype(np.float32))
    with pytest.raises(UserError) as error:
        check_task(Task(exchange(build(model))), DataSet(split, split), own=True)
    for fragment in fragments:
        assert fragment in str(error.value)
