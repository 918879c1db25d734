"""A part that isn't trained stays as it is, bit for bit, batch norm's moments too."""

import jax
import numpy as np
import pytest
from flax import nnx

from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.layers import Context, use_context
from pmapdp.train import train


class Body(nnx.Module):
    """A part with batch norms that have parameters, and one that has none."""

    def __init__(self, *, rngs):
        self.linear = nnx.Linear(6, 8, rngs=rngs)
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.plain = nnx.BatchNorm(8, use_scale=False, use_bias=False, rngs=rngs)

    def __call__(self, x):
        # The model says that this is training, as a Flax model for a bare loop does.
        x = self.norm(self.linear(x), use_running_average=False)
        return self.plain(x)


class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.body = Body(rngs=rngs)
        self.head_norm = nnx.BatchNorm(8, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.head_norm(self.body(x)))


def make_data():
    inputs = 3 + np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    return DataSet(Split(inputs, inputs[:, :3].argmax(1).astype(np.int32)))


TRAINABLE = {
    "names": ("head", "head_norm"),
    "filter": nnx.Any(nnx.PathContains("head"), nnx.PathContains("head_norm")),
}


@pytest.mark.parametrize("trainable", TRAINABLE)
@pytest.mark.parametrize("strategy", ["pmap", "shard_map", "jit", "single"])
def test_a_frozen_part_keeps_its_moments(strategy, trainable):
    devices = 1 if strategy == "single" else 4
    settings = {"strategy": strategy, "devices": devices, "progress": False}
    config = Config(**settings, epochs=2, global_batch_size=20, learning_rate=0.1)
    options = {"model": Net, "data": make_data(), "trainable": TRAINABLE[trainable]}
    before = Net(rngs=nnx.Rngs(config.seed))
    state = train(config, **options).state.model_state
    for path in ("body.linear.kernel", "body.norm.scale", "body.norm.mean"):
        np.testing.assert_array_equal(value_at(state, path), value_of(before, path))
    for path in ("body.norm.var", "body.plain.mean", "body.plain.var"):
        np.testing.assert_array_equal(value_at(state, path), value_of(before, path))
    moved = value_at(state, "head_norm.mean") - value_of(before, "head_norm.mean")
    assert np.abs(moved).max() > 0.01


def test_a_frozen_batch_norm_normalizes_with_its_running_moments():
    """In training too, as Flax's layer with use_running_average=True."""
    from pmapdp.layers import freeze_batch_norms, make_exact

    rngs = nnx.Rngs(0)
    stock = nnx.BatchNorm(6, use_running_average=True, rngs=rngs)
    stock.mean.set_value(np.full(6, 0.5, np.float32))
    layer = nnx.clone(stock)
    layer.use_running_average = False
    make_exact(layer)
    freeze_batch_norms(layer, nnx.Nothing())
    x = make_data().train.inputs
    with use_context(Context(np.ones(len(x), np.float32), train=True)):
        result = layer(x)
    np.testing.assert_allclose(result, stock(x), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(layer.mean[...], stock.mean[...])


def value_at(tree, path):
    for name in path.split("."):
        tree = tree[name]
    return np.asarray(jax.device_get(tree))


def value_of(model, path):
    for name in path.split("."):
        model = getattr(model, name)
    return np.asarray(model[...])
