"""Your loss and layers are tried on a few examples before training, and what they get wrong is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from points import run

from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.layers import current_context
from pmapdp.loss import MetricSums


def table(n: int, seed: int) -> Split:
    x = np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)
    return Split(x, (x @ np.arange(6)).astype(np.float32))


DATA = DataSet(table(90, 1), table(30, 2))


class Line(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(x)[:, 0]


def squares(model, batch):
    return jnp.square(model(batch.inputs) - batch.labels)


def right(model, batch):
    return MetricSums((batch.weights * squares(model, batch)).sum(), None, batch.weights.sum())


def weighted(model, batch):
    """Counts may be any positive numbers."""
    weights = batch.weights * (1.5 + jnp.sign(batch.labels))
    errors = squares(model, batch)
    return MetricSums((weights * errors).sum(), None, weights.sum(), {"rmse squared": (weights * errors).sum()})


def changed(change, train=False):
    """The right loss with other fields, `change(model, batch, sums)`, in training alone if asked."""

    def loss(model, batch):
        sums = right(model, batch)
        return sums if train and not current_context().train else sums._replace(**change(model, batch, sums))

    return loss


def noisy(model, batch, noise):
    errors = jnp.square(model(batch.inputs + noise) - batch.labels)
    return {"loss": (batch.weights * errors).sum()}


def contrastive(model, batch, sums):
    """It compares examples with each other."""
    y = batch.weights * model(batch.inputs)
    return {"loss": jnp.square(y[:, None] - y[None]).sum()}


def mean_of_none(model, batch, sums):
    """Not a number on a device that has padding alone."""
    return {"loss": sums.loss / sums.count}


def class_weights(model, batch):
    return batch.weights * (1 + 2.0 * (batch.labels > 0))


BROKEN = {
    "no weights": (
        lambda model, batch, sums: {"loss": squares(model, batch).sum()},
        "Line.* counts padding .*: mult",
    ),
    "padding counted": (
        lambda model, batch, sums: {"count": jnp.ones_like(batch.labels).sum()},
        "count in.* padding",
    ),
    "mean": (lambda model, batch, sums: {"loss": sums.loss / jnp.maximum(sums.count, 1)}, "is not a sum over the exa"),
    "mean of none": (mean_of_none, "is not a sum over the examples"),
    "penalty": (lambda model, batch, sums: {"loss": sums.loss + 3}, "a penalty that is added once a batch"),
    "contrastive": (contrastive, r"is not a sum over .* return \(batch.weights \* losses\).sum\(\)"),
    "mean of the batch": (lambda model, batch, sums: noisy(model, batch, -batch.inputs.mean(0)), "is not a sum over"),
    "one key": (
        lambda model, batch, sums: noisy(model, batch, jax.random.normal(jax.random.key(0), batch.inputs.shape)),
        "is not a sum over the examples",
    ),
    "two weights": (
        lambda model, batch, sums: {
            "count": class_weights(model, batch).sum(),
            "correct": (batch.weights * (batch.labels > 0)).sum(),
        },
        "returns correct 1 for an example that counts 3, so its accuracy would be wrong: give both the same weights",
    ),
    "a name that is taken": (lambda model, batch, sums: {"others": {"loss": sums.loss}}, "further sum called loss"),
}
IN_TRAINING = {
    "first key": (
        lambda model, batch, sums: noisy(model, batch, jax.random.normal(current_context().keys[0], (6,))),
        "is not a sum over the examples",
    ),
    "NumPy": (lambda model, batch, sums: noisy(model, batch, np.random.normal()), "Line draws random numbers of NumPy"),
    "NumPy's array": (
        lambda model, batch, sums: noisy(model, batch, np.random.normal(size=6)),
        "numbers of NumPy",
    ),
}
CASES = [(name, False) for name in BROKEN] + [(name, True) for name in BROKEN | IN_TRAINING]


@pytest.mark.parametrize(("name", "train"), CASES)
def test_a_loss_that_breaks_its_contract_is_named(name, train):
    change, sentence = (BROKEN | IN_TRAINING)[name]
    with pytest.raises(UserError, match=sentence) as error:
        run(Line, {"loss": changed(change, train), "data": DATA})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        (lambda model, batch: squares(model, batch).sum(), r"the loss of Line returns float32 \[\]: return sums"),
        (lambda model, batch: squares(model, batch).mean(), r"MetricSums\(loss=\(batch.weights \* losses\).sum\(\)"),
        (lambda model, batch: None, "the loss of Line returns .*: return sums over the examples"),
        (changed(lambda *_: {"loss": None}), r"returns loss as None: .* \(batch.weights \* loss\).sum\(\)"),
        (changed(lambda *_: {"loss": 0}), "returns loss as 0: return its sum"),
        (changed(lambda *_: {"count": 4}), r"returns count as 4: .*, for example batch.weights.sum\(\)"),
        (changed(lambda model, batch, sums: {"loss": squares(model, batch)}), r"returns loss as float32 \[4\]: return"),
        (lambda model, batch, context: right(model, batch), r"an argument context, which it no longer gets"),
    ],
)
def test_a_loss_that_returns_something_else_is_told_what_to_return(loss, sentence):
    with pytest.raises(UserError, match=sentence):
        run(Line, {"loss": loss, "data": DATA})


@pytest.mark.parametrize("strategy", ["pmap", "jit"])
def test_counts_may_be_any_positive_numbers(strategy):
    """The loss of an epoch is the weighted mean that NumPy computes from the state before; float32, within 1e-4."""
    result = run(Line, {"loss": weighted, "data": DATA}, strategy=strategy, learning_rate=0.0)
    x, y = map(np.asarray, DATA.test[:2])
    errors = (x @ np.asarray(result.state.params["out"]["kernel"])[:, 0] + result.state.params["out"]["bias"] - y) ** 2
    weights = 1.5 + np.sign(y)
    test = result.epochs[0]["test"]
    assert test["loss"] == pytest.approx((weights * errors).sum() / weights.sum(), rel=1e-4)
    assert test["rmse squared"] == pytest.approx(test["loss"])
    assert "accuracy" not in test


class Moments(nnx.Module):
    """Keeps a running mean of what its device sees; of what all see with `everywhere`; without padding if `weighted`;
    with `odd` another one on the sixth device."""

    everywhere = weighted = odd = False

    def __init__(self, *, rngs):
        self.mean, self.out = nnx.BatchStat(jnp.zeros(6)), nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        context = current_context()
        if context.train:
            weights = context.weights if self.weighted else jnp.ones(len(x))
            sums = (weights[:, None] * x).sum(0), weights.sum()
            if self.everywhere and context.axis_name is not None:
                sums = jax.lax.psum(sums, context.axis_name)
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * sums[0] / jnp.maximum(sums[1], 1)
            if self.odd:
                self.mean[...] += jax.lax.axis_index(context.axis_name) == 5
        return self.out(x)[:, 0]


def run_moments(strategy, **kind):
    model = type("Moments", (Moments,), kind)
    return run(model, {"loss": right, "data": DATA}, strategy=strategy, devices=6, global_batch_size=18)


@pytest.mark.parametrize("strategy", ["pmap", "shard_map"])
def test_a_layer_that_leaves_the_devices_different_is_named(strategy):
    """The trial on four devices doesn't show it, so it is found after the first update."""
    with pytest.raises(UserError, match="after the first update mean differs between devices"):
        run_moments(strategy, everywhere=True, weighted=True, odd=True)
    assert run_moments(strategy, everywhere=True, weighted=True).epochs


@pytest.mark.parametrize("kind", [{}, {"weighted": True}, {"everywhere": True}])
def test_a_layer_that_writes_what_its_device_sees_or_padding_is_named(kind):
    with pytest.raises(UserError, match="Moments writes mean from the rows of one device, or padding with them"):
        run_moments("jit", **kind)


class Constants(nnx.Module):
    """Arrays that are not trained: an attribute, a variable, NumPy's."""

    def __init__(self, *, rngs):
        self.scale, self.shift = jnp.float32(0.5), np.arange(6, dtype=np.float32)
        self.mask, self.out = nnx.Variable(jnp.ones(6)), nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.scale * (x + self.shift) * self.mask)[:, 0]


@pytest.mark.parametrize("strategy", ["pmap", "jit", "shard_map", "single"])
def test_constants_are_carried_and_not_trained(strategy):
    devices = None if strategy == "single" else 3
    state = run(Constants, {"loss": right, "data": DATA}, strategy=strategy, devices=devices).state
    found = {name: np.asarray(value).tolist() for name, value in state.model_state.items()}
    assert found == {"scale": 0.5, "shift": [0, 1, 2, 3, 4, 5], "mask": [1] * 6}


class Tokens(nnx.Module):
    def __init__(self, *, rngs):
        self.embed, self.out = nnx.Embed(5, 8, rngs=rngs), nnx.Linear(8, 5, rngs=rngs)

    def __call__(self, tokens):
        return self.out(self.embed(tokens))

    def loss(self, batch):
        """As of a language model: each example has its own number of tokens, and the mean is over all of them."""
        valid = batch.weights[:, None] * (batch.labels >= 0)
        logits = self(batch.inputs)
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.maximum(batch.labels, 0)[..., None], 2)[..., 0]
        correct = (valid * (logits.argmax(-1) == batch.labels)).sum()
        return MetricSums((valid * losses).sum(), correct, valid.sum())


class TwoTargets(nnx.Module):
    def __init__(self, *, rngs):
        self.kind, self.size = nnx.Linear(6, 3, rngs=rngs), nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, inputs):
        x = jnp.concatenate([inputs["a"], inputs["b"]], 1)
        return self.kind(x), self.size(x)[:, 0]

    def loss(self, batch):
        logits, size = self(batch.inputs)
        log_p = jnp.take_along_axis(jax.nn.log_softmax(logits), batch.labels["kind"][:, None], 1)[:, 0]
        losses = jnp.square(size - batch.labels["size"]) - log_p
        return MetricSums((batch.weights * losses).sum(), None, batch.weights.sum())


def tokens(n, seed):
    random = np.random.default_rng(seed)
    inputs = random.integers(0, 5, (n, 7))
    return Split(inputs, np.where(np.arange(7) < random.integers(1, 8, (n, 1)), (inputs + 1) % 5, -1))


def two_targets(part):
    inputs = {"a": part.inputs[:, :2], "b": part.inputs[:, 2:]}
    return Split(inputs, {"kind": part.inputs[:, :3].argmax(1), "size": part.labels})


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (Line, DATA),
        (Tokens, DataSet(tokens(90, 1), tokens(30, 2))),
        (TwoTargets, DataSet(two_targets(DATA.train), two_targets(DATA.test))),
    ],
)
def test_your_loss_gives_on_eight_devices_what_it_gives_on_one(model, data):
    """Though they hold different numbers of tokens, and labels may be a dictionary."""
    values = {"data": data} | ({"loss": right} if model is Line else {})
    settings = {"epochs": 2, "learning_rate": 0.02}
    one, eight = (run(model, values, **settings, strategy=s, devices=N) for s, N in (("single", 1), ("pmap", 8)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), one.state.params, eight.state.params)
    assert eight.epochs[-1]["train"]["loss"] < eight.epochs[0]["train"]["loss"]
