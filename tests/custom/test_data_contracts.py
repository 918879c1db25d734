"""The contracts for data of every kind: weights, examples that are read one by one, augmentation, no test set."""

import contextlib
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from marks import quick

from pmapdp.config import Config
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.evaluate import evaluate_exported, evaluate_run
from pmapdp.export import export_run, load_exported
from pmapdp.train import train

SETTINGS = {"devices": 4, "epochs": 2, "global_batch_size": 18, "progress": False, "compile_cache": False}


class Net(nnx.Module):
    """Two inputs, `[b, 2]` and `[b, 4]`, to three logits."""

    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        types = {"dtype": dtype, "param_dtype": param_dtype, "rngs": rngs}
        self.hidden, self.norm = nnx.Linear(6, 16, **types), nnx.BatchNorm(16, **types)
        self.dropout, self.out = nnx.Dropout(0.2, rngs=rngs), nnx.Linear(16, 3, **types)

    def __call__(self, x):
        x = self.norm(self.hidden(jnp.concatenate([x["a"], x["b"]], 1)))
        return self.out(self.dropout(nnx.relu(x)))


class WithoutDropout(Net):
    """With batch norm alone."""

    def __call__(self, x):
        return self.out(nnx.relu(self.norm(self.hidden(jnp.concatenate([x["a"], x["b"]], 1)))))


def points(n, seed):
    """Points whose class is that of their largest of three sums, each with a weight."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(n, 6)).astype(np.float32)
    labels = x.reshape(n, 3, 2).sum(2).argmax(1).astype(np.int32)
    return Split({"a": x[:, :2], "b": x[:, 2:]}, labels, random.uniform(0.5, 2, n).astype(np.float32))


def one_by_one(data):
    rows = zip(data.inputs["a"], data.inputs["b"], data.labels, data.weights, strict=True)
    return [{"a": a, "b": b, "label": label, "weight": weight} for a, b, label, weight in rows]


def noisy(inputs, key):
    """Adds noise, and turns the sign of half of the examples."""
    sign, noise = jax.random.split(key)
    a = jnp.where(jax.random.bernoulli(sign), -inputs["a"], inputs["a"])
    return {"a": a, "b": inputs["b"] + 0.1 * jax.random.normal(noise, inputs["b"].shape)}


TRAIN, TEST = points(100, 1), points(40, 2)
DATA = DataSet(TRAIN, TEST, augment=noisy)
READ = DataSet(one_by_one(TRAIN), one_by_one(TEST), augment=noisy)


def run(data, model=Net, **settings):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        result = train(Config(**SETTINGS | settings), model=model, data=data)
    return result, shown.getvalue()


@quick(1, ("strategy", "devices"), [("pmap", 4), ("jit", 3), ("shard_map", 4), ("shard_map", 3)])
def test_every_strategy_trains_as_one_device_does(strategy, devices):
    """Weights, augmentation, dictionaries and examples read one by one; float64 within 1e-10, and metrics alike."""
    alone, _ = run(DATA, strategy="single", devices=1, dtype="float64")
    found, _ = run(READ, strategy=strategy, devices=devices, dtype="float64")
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), found.state.params, alone.state.params)
    for part in ("train", "test"):
        assert found.epochs[-1][part] == pytest.approx(alone.epochs[-1][part], rel=1e-9)
    assert found.epochs[-1]["train"]["examples"] == 100


@pytest.mark.slow
def test_a_run_that_was_stopped_ends_bit_for_bit_alike(tmp_path):
    """In the middle of an epoch; examples are read one by one and augmented."""
    straight, _ = run(READ, workdir=str(tmp_path / "one"))
    run(READ, workdir=str(tmp_path / "two"), steps=9)
    resumed, shown = run(READ, workdir=str(tmp_path / "two"))
    assert "restored from the checkpoint of step 9" in shown
    jax.tree.map(np.testing.assert_array_equal, straight.state, resumed.state)


def test_a_weight_of_two_counts_as_two_examples():
    """Gradients, moments of batch norm and metrics; one update of all examples in float64, within 1e-10."""
    x, labels, weights = np.random.default_rng(3).normal(size=(12, 6)), np.arange(12) % 3, np.arange(12) % 2 + 1
    once, twice = (
        Split({"a": rows[:, :2], "b": rows[:, 2:]}, y)
        for rows, y in ((x, labels), (x.repeat(weights, 0), labels.repeat(weights)))
    )
    settings = {"dtype": "float64", "epochs": 1, "optimizer": "sgd", "strategy": "pmap", "devices": 4}
    weighted, _ = run(DataSet(once._replace(weights=weights), once), WithoutDropout, global_batch_size=12, **settings)
    repeated, _ = run(DataSet(twice, once), WithoutDropout, global_batch_size=18, **settings)
    for arrays in ("params", "model_state"):
        states = (getattr(result.state, arrays) for result in (weighted, repeated))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), *states)
    assert weighted.epochs[0]["train"]["accuracy"] == pytest.approx(repeated.epochs[0]["train"]["accuracy"])
    assert (weighted.epochs[0]["train"]["examples"], repeated.epochs[0]["train"]["examples"]) == (12, 18)


@pytest.mark.slow
def test_a_validation_set_is_measured_in_the_place_of_the_test_set(tmp_path):
    """And the test set waits for `evaluate`. The exported file says the same of it, within 1e-5."""
    workdir, data = str(tmp_path / "run"), DataSet(TRAIN, TEST, validation=points(30, 4))
    result, shown = run(data, workdir=workdir, epochs=1)
    assert "100 to train, 40 to test, 30 to validate" in shown
    assert "validation accuracy: best" in shown
    assert result.epochs[0]["validation"]["examples"] == 30
    assert "test" not in result.epochs[0]
    totals, _ = evaluate_run(workdir, model=Net, data=data)
    assert totals["examples"] == 40
    export_run(workdir, str(tmp_path / "model.zip"), model=Net, data=data)
    exported = load_exported(tmp_path / "model.zip")
    assert evaluate_exported(exported, TEST) == pytest.approx(totals, rel=1e-5)
    assert exported.metadata["input"]["b"] == {"dtype": "float32", "shape": ["batch", 4]}


def test_without_a_test_set(tmp_path):
    workdir = str(tmp_path / "run")
    result, shown = run(DataSet(TRAIN), workdir=workdir, epochs=1)
    assert "100 to train, content" in shown
    assert "  test" not in shown
    assert f"train accuracy: best {result.epochs[0]['train']['accuracy']:.4f} (epoch 1)" in shown
    with pytest.raises(UserError, match="arrays has no test set to evaluate on: give one"):
        evaluate_run(workdir, model=Net, data=DataSet(TRAIN))


@pytest.mark.parametrize(
    ("augment", "sentence"),
    [
        (lambda inputs: inputs, "Net fails in training .*: correct its __call__, its loss, metrics= or augment="),
        (lambda inputs, key: inputs["c"], "Net fails in training .no 'c'.: correct its"),
        (
            lambda inputs, key: {"a": inputs["a"] + np.random.normal(), "b": inputs["b"]},
            "random numbers of NumPy",
        ),
        (5, "Net fails in training .*callable"),
    ],
)
def test_an_augmentation_that_breaks_the_contract_is_refused(augment, sentence):
    with pytest.raises(UserError, match=sentence):
        run(DataSet(TRAIN, TEST, augment=augment))
