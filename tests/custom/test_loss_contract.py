"""A loss of one's own is tried on a few examples before training; what it gets wrong is named."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.evaluate.evaluation import evaluate_exported, evaluate_run
from pmapdp.export.read import load_exported
from pmapdp.export.write import export_run
from pmapdp.layers import current_context
from pmapdp.loss import MetricSums
from pmapdp.train import train


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


def no_weights(model, batch):
    return MetricSums(squares(model, batch).sum(), None, batch.weights.sum())


def counts_padding(model, batch):
    return MetricSums((batch.weights * squares(model, batch)).sum(), None, len(batch.labels))


def mean(model, batch):
    errors = batch.weights * squares(model, batch)
    return MetricSums(errors.sum() / jnp.maximum(batch.weights.sum(), 1), None, batch.weights.sum())


def mean_of_none(model, batch):
    """Not a number on a device that has padding alone."""
    errors = batch.weights * squares(model, batch)
    return MetricSums(errors.sum() / batch.weights.sum(), None, batch.weights.sum())


def penalty(model, batch):
    sums = right(model, batch)
    return sums._replace(loss=sums.loss + 0.1 * jnp.square(model.out.kernel[...]).sum() + 3)


def of_each(model, batch):
    return MetricSums(batch.weights * squares(model, batch), None, batch.weights.sum())


def contrastive(model, batch):
    """Compares examples with each other."""
    y = batch.weights * model(batch.inputs)
    return MetricSums(jnp.square(y[:, None] - y[None]).sum(), None, batch.weights.sum())


def run(loss, **settings):
    settings = {"devices": 3, "epochs": 1, "global_batch_size": 20, "progress": False, "learning_rate": 0.1} | settings
    return train(Config(**settings), model=Line, data=DATA, loss=loss)


def in_training(change):
    """A loss that `change` alters in training alone."""

    def loss(model, batch):
        sums = right(model, batch)
        return sums._replace(**change(model, batch, sums)) if current_context().train else sums

    return loss


def noisy(model, batch, noise):
    errors = jnp.square(model(batch.inputs + noise) - batch.labels)
    return {"loss": (batch.weights * errors).sum()}


def one_key(model, batch, sums):
    return noisy(model, batch, jax.random.normal(jax.random.key(0), batch.inputs.shape))


def key_of_the_first(model, batch, sums):
    return noisy(model, batch, jax.random.normal(current_context().keys[0], (6,)))


def mean_of_the_batch(model, batch, sums):
    return noisy(model, batch, -batch.inputs.mean(0))


IN_TRAINING = {
    "weights": (lambda model, batch, sums: {"loss": squares(model, batch).sum()}, "counts padding"),
    "count": (lambda model, batch, sums: {"count": jnp.ones_like(batch.labels).sum()}, "counts padding"),
    "penalty": (lambda model, batch, sums: {"loss": sums.loss + 3}, "a penalty that is added once a batch"),
    "one key": (one_key, "is not a sum over the examples"),
    "the first key": (key_of_the_first, "is not a sum over the examples"),
    "mean of the batch": (mean_of_the_batch, "is not a sum over the examples"),
}


@pytest.mark.parametrize("name", IN_TRAINING)
def test_a_loss_that_breaks_its_contract_in_training_alone_is_named(name):
    change, said = IN_TRAINING[name]
    with pytest.raises(UserError, match=f"loss of Line in training {said}|loss of Line in training has {said}"):
        run(in_training(change))


@pytest.mark.parametrize("draw", [lambda: np.random.normal(), lambda: np.random.default_rng().normal(size=6)])
def test_random_numbers_of_numpy_are_named(draw):
    """They would be constants of the compiled step."""
    with pytest.raises(UserError, match="Line draws random numbers of NumPy or Python as JAX traces it"):
        run(in_training(lambda model, batch, sums: noisy(model, batch, draw())))


@pytest.mark.parametrize(
    ("field", "value"), [("loss", None), ("loss", 0), ("loss", True), ("count", 0), ("count", float("nan"))]
)
def test_a_sum_that_is_no_array_is_named(field, value):
    with pytest.raises(UserError, match=f"the loss of Line returns {field} as {value}: return its sum"):
        run(lambda model, batch: right(model, batch)._replace(**{field: value}))


@pytest.mark.parametrize(
    ("loss", "fragments"),
    [
        (no_weights, ["the loss of Line counts padding", "multiply by batch.weights"]),
        (counts_padding, ["the loss of Line returns count as 4", "for example batch.weights.sum()"]),
        (mean_of_none, ["is not a sum over the examples"]),
        (mean, ["is not a sum over the examples", "(batch.weights * losses).sum()"]),
        (penalty, ["a penalty that is added once a batch", "multiply it by batch.weights.sum()"]),
        (of_each, ["returns loss of shape [4]", "(batch.weights * loss).sum()"]),
        (contrastive, ["is not a sum over the examples"]),
        (lambda model, batch: squares(model, batch).sum(), ["returns", "MetricSums"]),
    ],
)
def test_a_loss_that_breaks_its_contract_is_named(loss, fragments):
    with pytest.raises(UserError) as error:
        run(loss)
    for fragment in fragments:
        assert fragment in str(error.value)


def test_a_regression_has_no_accuracy(capsys):
    (epoch,) = run(right).epochs
    assert not {name for name in epoch if "accuracy" in name}
    assert "accuracy" not in capsys.readouterr().out
    assert epoch["test"]["examples"] == 30


def test_a_regression_is_evaluated_and_exported_by_its_own_loss(tmp_path):
    """Of the run and of the file, the test loss of the last epoch; the file's outputs are the model's; within 1e-6."""
    workdir, file, own = str(tmp_path / "run"), str(tmp_path / "line.zip"), {"model": Line, "loss": right, "data": DATA}
    settings = Config(devices=3, epochs=1, global_batch_size=20, progress=False, workdir=workdir)
    result = train(settings, **own)
    wanted = result.epochs[-1]["test"]["loss"]
    assert evaluate_run(workdir, **own)[0]["loss"] == pytest.approx(wanted, rel=1e-6)
    export_run(workdir, file, **own)
    exported = load_exported(file)
    assert evaluate_exported(exported, DATA.test)["loss"] == pytest.approx(wanted, rel=1e-6)
    outputs = exported.outputs(DATA.test.inputs)["outputs"]
    assert np.square(outputs - DATA.test.labels).mean() == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("strategy", ["pmap", "jit"])
def test_counts_may_be_any_positive_numbers(strategy):
    """The loss of an epoch is the weighted mean that NumPy computes from the state before; float32, within 1e-4."""
    (epoch,) = run(weighted, strategy=strategy, learning_rate=0.0, schedule="constant").epochs
    state = run(weighted, strategy=strategy, learning_rate=0.0, schedule="constant").state
    x, y = map(np.asarray, DATA.test[:2])
    errors = (x @ np.asarray(state.params["out"]["kernel"])[:, 0] + state.params["out"]["bias"] - y) ** 2
    weights = 1.5 + np.sign(y)
    assert epoch["test"]["loss"] == pytest.approx((weights * errors).sum() / weights.sum(), rel=1e-4)
    assert epoch["test"]["rmse squared"] == pytest.approx(epoch["test"]["loss"])


class OwnMoments(nnx.Module):
    """Keeps a running mean of what its device sees; of what all see with `everywhere`; without padding if `weighted`;
    with `odd` another one on the third device."""

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
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * sums[0] / sums[1]
            if self.odd:
                self.mean[...] += jax.lax.axis_index(context.axis_name) == 2
        return self.out(x)[:, 0]


def own_loss(model, batch):
    errors = jnp.square(model(batch.inputs) - batch.labels)
    return MetricSums((batch.weights * errors).sum(), None, batch.weights.sum())


def run_moments(strategy, **kind):
    settings = Config(strategy=strategy, devices=3, epochs=1, global_batch_size=18, progress=False)
    return train(settings, model=type("OwnMoments", (OwnMoments,), kind), data=DATA, loss=own_loss)


@pytest.mark.parametrize("strategy", ["pmap", "shard_map"])
def test_a_layer_that_leaves_the_devices_different_is_named(strategy):
    """What two devices on four examples do not show is found after the first update."""
    with pytest.raises(UserError, match="after the first update mean differs between devices"):
        run_moments(strategy, everywhere=True, weighted=True, odd=True)
    assert run_moments(strategy, everywhere=True, weighted=True).epochs


@pytest.mark.parametrize("kind", [{}, {"weighted": True}, {"everywhere": True}])
def test_a_layer_that_writes_what_its_device_sees_or_padding_is_named(kind):
    with pytest.raises(UserError, match="OwnMoments writes mean from the rows of one device, or padding with them"):
        run_moments("jit", **kind)


class Constants(nnx.Module):
    """Arrays that are not trained: an attribute, a variable of its own, NumPy's."""

    def __init__(self, *, rngs):
        self.scale, self.shift = jnp.float32(0.5), np.arange(6, dtype=np.float32)
        self.mask, self.out = nnx.Variable(jnp.ones(6)), nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(self.scale * (x + self.shift) * self.mask)[:, 0]


@pytest.mark.parametrize("strategy", ["pmap", "jit", "shard_map", "single"])
def test_constants_are_carried_and_not_trained(strategy):
    devices = None if strategy == "single" else 3
    settings = Config(strategy=strategy, devices=devices, epochs=1, global_batch_size=18, progress=False)
    state = train(settings, model=Constants, data=DATA, loss=right).state
    assert {name: np.asarray(value).tolist() for name, value in state.model_state.items()} == {
        "scale": 0.5,
        "shift": [0, 1, 2, 3, 4, 5],
        "mask": [1] * 6,
    }
