"""A model, a data set and a loss of one's own take the same way as ours."""

import json
import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import launch
import numpy as np
import pytest
from flax import nnx
from marks import quick

from pmapdp import cli
from pmapdp.config import Config
from pmapdp.custom.data import make_data_set
from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError
from pmapdp.evaluate.__main__ import main as evaluate
from pmapdp.evaluate.evaluation import evaluate_exported, evaluate_run
from pmapdp.export.__main__ import main as export
from pmapdp.export.read import load_exported
from pmapdp.export.write import export_run
from pmapdp.loss import MetricSums
from pmapdp.state import build, count_parameters
from pmapdp.train import main as train_command
from pmapdp.train import train

SETTINGS = {"devices": 4, "epochs": 2, "global_batch_size": 18, "progress": False, "compile_cache": False}


class Net(nnx.Module):
    """`[b, 6]` to three logits."""

    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        self.hidden = nnx.Linear(6, 16, dtype=dtype, param_dtype=param_dtype, rngs=rngs)
        self.out = nnx.Linear(16, 3, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, inputs):
        return self.out(nnx.relu(self.hidden(inputs)))


class OfItsOwnTypes(nnx.Module):
    """Takes no types, as most Flax models."""

    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, inputs):
        return self.out(inputs)


class WholeNumbers(Net):
    """Has a parameter without a gradient."""

    def __init__(self, *, rngs):
        super().__init__(rngs=rngs)
        self.places = nnx.Param(jnp.arange(3))


class LogitsAndFeatures(Net):
    """More than a classifier gives."""

    def __call__(self, inputs):
        return super().__call__(inputs), inputs


class OneNumber(Net):
    """Gives `[b]` instead of logits."""

    def __call__(self, inputs):
        return super().__call__(inputs)[:, 0]


class OneLogit(Net):
    """Of two classes."""

    def __call__(self, inputs):
        return super().__call__(inputs)[:, :1]


def points(n, seed):
    """Points whose class is that of their largest of three sums."""
    x = np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)
    return Split(x, x.reshape(n, 3, 2).sum(2).argmax(1).astype(np.int32))


DATA = DataSet(points(100, 1), points(40, 2), ("a", "b", "c"))


def arrays_of(data):
    """As a file of data names them: `train_inputs` and so on."""
    return {
        f"{part}_{name}": getattr(split, name) for part, split in data.parts.items() for name in ("inputs", "labels")
    }


@quick(1, "strategy", ["jit", "pmap", "shard_map"])
def test_every_strategy_trains_it_as_one_device_does(strategy):
    settings = SETTINGS | {"dtype": "float64"}
    alone = train(Config(**settings | {"devices": 1}, strategy="single"), model=Net, data=DATA)
    found = train(Config(**settings, strategy=strategy), model=Net, data=DATA)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-10), found.state.params, alone.state.params)
    assert found.epochs[-1]["test"]["examples"] == 40
    assert found.epochs[-1]["test"]["accuracy"] == alone.epochs[-1]["test"]["accuracy"]


def test_a_model_that_names_no_types_is_built_without_them():
    assert (
        count_parameters(nnx.state(build(OfItsOwnTypes)))
        == count_parameters(nnx.state(build(lambda rngs: OfItsOwnTypes(rngs=rngs))))
        == 21
    )


def test_a_run_is_named_after_them(tmp_path):
    file = tmp_path / "metrics.jsonl"
    train(Config(**SETTINGS | {"metrics_file": str(file), "steps": 1}), model=Net, data=DATA)
    start = json.loads(file.read_text().splitlines()[0])
    assert (start["model"], start["dataset"], start["train"]["examples"]) == ("Net", "arrays", 100)


def test_fewer_examples_than_the_default_batch(capsys):
    """Case 20: nobody asked for 64, so a small training set is one batch."""
    small = DataSet(points(40, 1), points(10, 2))
    train(Config(**SETTINGS | {"global_batch_size": None, "epochs": 1}), model=Net, data=small)
    assert "40 over all devices" in capsys.readouterr().out


def test_a_path_for_a_text_is_one_sentence(tmp_path):
    with pytest.raises(UserError, match=rf"workdir=PosixPath\(.*\) is .*: try workdir='{tmp_path}'"):
        Config(workdir=tmp_path)


def squared_error(model, batch):
    """A regression: the label is a number."""
    errors = jnp.square(model(batch.inputs)[:, 0] - batch.labels)
    return MetricSums((batch.weights * errors).sum(), jnp.zeros(()), batch.weights.sum())


def token_loss(model, batch):
    """As of a language model: each example has its own number of tokens, and the mean is over all of them."""
    tokens = batch.weights[:, None] * (batch.labels >= 0)
    log_p = jax.nn.log_softmax(model(batch.inputs))
    losses = -jnp.take_along_axis(log_p, jnp.maximum(batch.labels, 0), axis=1)
    return MetricSums((tokens * losses).sum(), jnp.zeros(()), tokens.sum())


def with_labels(make):
    return DataSet(*(Split(part.inputs, make(part)) for part in (DATA.train, DATA.test)))


REGRESSION = with_labels(lambda part: part.inputs.sum(1))
TOKENS = with_labels(lambda part: np.where(part.inputs[:, :2] > 0, [0, 1], -1).astype(np.int32))


@pytest.mark.parametrize(("loss", "data"), [(squared_error, REGRESSION), (token_loss, TOKENS)])
def test_a_loss_of_ones_own(loss, data):
    """Eight devices give what one gives, though they hold different numbers of tokens."""
    runs = [
        train(Config(**SETTINGS | {"devices": N}, strategy=strategy), model=Net, data=data, loss=loss)
        for strategy, N in (("single", 1), ("pmap", 8))
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), *(run.state.params for run in runs))
    assert runs[1].epochs[-1]["train"]["loss"] < runs[1].epochs[0]["train"]["loss"]


class Regression(Net):
    """Brings its own loss."""

    def loss(self, batch):
        return squared_error(self, batch)


def test_a_model_may_bring_its_loss():
    given, brought = (
        train(Config(**SETTINGS), data=REGRESSION, **own)
        for own in ({"model": Net, "loss": squared_error}, {"model": Regression})
    )
    jax.tree.map(np.testing.assert_array_equal, given.state.params, brought.state.params)


def nan(x):
    return np.where(np.arange(x.size).reshape(x.shape) == 7, np.nan, x)


@pytest.mark.filterwarnings("error::UserWarning")  # of JAX, about float64
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            {"data": with_labels(lambda part: part.labels + 1)},
            "labels are from 1 to 3, and Net has 3 logits: subtract 1 from the labels",
        ),
        (
            {"data": DataSet(Split(nan(DATA.train.inputs), DATA.train.labels), DATA.test)},
            "inputs .* are not all finite",
        ),
        (
            {"data": DataSet(*(Split(p.inputs[:, :5], p.labels) for p in (DATA.train, DATA.test)))},
            "does not take inputs",
        ),
        ({"data": DataSet(DATA.train, Split(DATA.test.inputs[:, :5], DATA.test.labels))}, "only n may differ"),
        ({"model": OneLogit}, "OneLogit has a single logit: give it one for each class, or a loss of your own"),
        ({"model": OneNumber}, r"OneNumber gives float32 \[4\]"),
        ({"model": LogitsAndFeatures}, r"LogitsAndFeatures gives float32 \[4, 3\], float32 \[4, 6\]"),
        (
            {"data": DataSet(DATA.train, DATA.test, ("a", "b"))},
            "the data name 2 classes, and Net has 3 logits: name all",
        ),
        ({"data": with_labels(lambda part: part.inputs[:, :2])}, r"labels are float32 \[4, 2\]: of one-hot rows give"),
        ({"model": WholeNumbers}, "has the parameter places of int32, which has no gradient: make it of float32"),
        ({"data": with_labels(lambda part: part.labels / 2)}, r"labels are float32 \[4\]"),
        ({"loss": lambda model, batch: model(batch.inputs).sum()}, "MetricSums"),
        (
            {"data": DataSet(Texts(["good"], DATA.train.labels[:1]), Texts(["bad"], DATA.test.labels[:1]))},
            "holds texts",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence(change, sentence):
    with pytest.raises(UserError, match=sentence):
        train(Config(**SETTINGS), **{"model": Net, "data": DATA} | change)


def test_a_model_that_was_built_is_one_sentence():
    with pytest.raises(UserError, match="model is a Net that was built already: give a class or function"):
        train(Config(**SETTINGS), model=Net(rngs=nnx.Rngs(0)), data=DATA)


FILE = """
import jax.numpy as jnp
from flax import nnx

class Net(nnx.Module):
    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        self.out = nnx.Linear(6, 3, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, inputs):
        return self.out(inputs)
"""


def test_the_example_of_the_readme_runs(monkeypatch):
    monkeypatch.setattr("pmapdp.run.compile_cache.enable", lambda: None)
    page = (Path(__file__).parents[2] / "README.md").read_text()
    names = arrays_of(DATA)
    exec(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1], names)
    assert names["result"].epochs[-1]["test"]["examples"] == 40


@pytest.mark.slow
def test_the_page_of_own_models_runs(tmp_path, monkeypatch):
    """docs/own.md with the model of the README: it trains, and evaluation gives its figures again, within 1e-5."""
    monkeypatch.setattr("pmapdp.run.compile_cache.enable", lambda: None)
    monkeypatch.chdir(tmp_path)
    readme, page = ((Path(__file__).parents[2] / name).read_text() for name in ("README.md", "docs/own.md"))
    names = arrays_of(REGRESSION)
    training, loss, *examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    model = re.search(r"```python\n(.*?)\ndata = ", readme, re.DOTALL)[1]
    for code in (model, loss, training):
        exec(code, names)
    first, last = names["result"].epochs[0], names["result"].epochs[-1]
    assert last["test"]["loss"] < first["test"]["loss"]
    totals, _ = evaluate_run("runs/own", model=names["Net"], data=REGRESSION, loss=names["my_loss"])
    wanted = pytest.approx(last["test"], rel=1e-5)
    assert totals == wanted

    columns = {"sizes": np.ones((9, 1)), "places": np.ones((9, 2)), "values": np.ones(9)}
    names |= columns | {f"test_{name}": each for name, each in columns.items()}
    names |= {"errors": np.arange(1, 10), "numpy": np, "jax": jax}
    for code in examples:
        exec(code, names)
    assert names["longer"].epochs[0]["test"]["loss"] < first["test"]["loss"]
    found = {name: make_data_set(names[name]).train for name in ("measured", "photos", "augmented")}
    assert [part.examples for part in found.values()] == [9, 100, 100]
    np.testing.assert_allclose(found["measured"].weights, 1 / np.arange(1, 10) ** 2, rtol=1e-6)
    assert found["augmented"].take(np.array([7])).inputs.max() == 7
    key, image = jax.random.key(0), np.arange(3)[None]
    np.testing.assert_array_equal(names["flip"](image, key), image[:, :: -1 if jax.random.bernoulli(key) else 1])


@pytest.mark.slow
def test_files_on_the_command_line(tmp_path):
    model, data, workdir = tmp_path / "net.py", tmp_path / "points.npz", tmp_path / "run"
    model.write_text(FILE)
    np.savez(data, **arrays_of(DATA), classes=["a", "b", "c"])
    flags = ("--model", f"{model}:Net", "--dataset", data, "--global-batch-size", 20, "--learning-rate", 0.05)
    run = launch.train(*flags, "--epochs", 3, "--devices", 3, "--workdir", workdir)
    assert run.returncode == 0, run.stderr
    accuracy = re.search(r"last (0\.\d+)", run.stdout)[1]

    again = launch.python("-m", "pmapdp.evaluate", workdir, "--strategy", "single", "--json")
    assert again.returncode == 0, again.stderr
    assert f"{json.loads(again.stdout)['test']['accuracy']:.4f}" == accuracy


REGRESSION_FILE = """
import jax.numpy as jnp
from flax import nnx
from pmapdp.loss import MetricSums

class Line(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, 1, rngs=rngs)

    def __call__(self, x):
        return self.out(x)[:, 0]

    def loss(self, batch):
        errors = jnp.square(self(batch.inputs) - batch.labels)
        others = {"absolute error": (batch.weights * jnp.sqrt(errors)).sum()}
        return MetricSums((batch.weights * errors).sum(), None, batch.weights.sum(), others)
"""


def test_a_regression_on_the_command_line(tmp_path, monkeypatch, capsys):
    """Its loss and its further sums are shown, by training and export alike, and no accuracy."""
    monkeypatch.chdir(tmp_path)
    Path("line.py").write_text(REGRESSION_FILE)
    np.savez("points.npz", **arrays_of(REGRESSION))
    flags = ["--model", "line.py:Line", "--dataset", "points.npz", "--epochs", "1", "--devices", "2"]
    outputs = {}
    for main, arguments in ((train_command, [*flags, "--workdir", "run"]), (export, ["run", "line.zip"])):
        assert cli.run(main, [*arguments]) == 0, capsys.readouterr().err
        outputs[main] = capsys.readouterr().out
    shown = re.search(r"test (loss \S+ absolute error \S+)", outputs[train_command])[1]
    assert f"test {shown}" in outputs[export]
    assert "accuracy" not in "".join(outputs.values())


def test_a_file_of_python_that_changes_the_current_folder(tmp_path, monkeypatch):
    """Every path is meant from where the command was started."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "net.py").write_text(FILE + "\nimport os\nos.chdir(os.path.join(os.path.dirname(__file__), 'sub'))\n")
    np.savez(tmp_path / "points.npz", **arrays_of(DATA))
    flags = ["--model", "net.py:Net", "--dataset", "points.npz", "--global-batch-size", "20", "--epochs", "1"]
    outputs = ["--workdir", "run", "--metrics-file", "metrics.jsonl", "--devices", "2"]
    for main, arguments in (
        (train_command, [*flags, *outputs]),
        (evaluate, ["run"]),
        (export, ["run", "model.zip"]),
        (evaluate, ["model.zip"]),
    ):
        monkeypatch.chdir(tmp_path)
        assert cli.run(main, arguments) == 0
    there = set(os.listdir(tmp_path)) - {"__pycache__"}  # Python's own
    assert there == {"metrics.jsonl", "model.zip", "net.py", "points.npz", "run", "sub"}
    assert os.listdir(tmp_path / "sub") == []


@pytest.mark.parametrize("name", ["net.py", "points.npz", "link"])
def test_a_metrics_file_never_replaces_an_input(tmp_path, monkeypatch, capsys, name):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(FILE)
    Path("points.npz").write_bytes(b"")
    os.symlink("net.py", "link")
    flags = ["--model", "net.py:Net", "--dataset", "points.npz", "--metrics-file", name]
    assert cli.run(train_command, flags) == 2
    assert f"--metrics-file {name} is also a file" in capsys.readouterr().err
    assert (Path("net.py").read_text(), Path("points.npz").read_bytes()) == (FILE, b"")


def test_a_run_of_values_is_evaluated_and_exported_with_them(tmp_path, capsys):
    workdir, file = str(tmp_path / "run"), str(tmp_path / "model.zip")
    values = {"model": Net, "data": DATA}
    found = train(Config(**SETTINGS | {"workdir": workdir}), **values).epochs[-1]
    totals, facts = evaluate_run(workdir, strategy="jit", devices=3, **values)
    assert (totals["accuracy"], facts["dataset"]) == (found["test"]["accuracy"], "arrays")
    metadata = export_run(workdir, file, **values)
    assert (metadata["model"], metadata["metrics"]["test"]["accuracy"]) == ("Net", found["test"]["accuracy"])
    exported = load_exported(file)
    assert exported.metadata["labels"] == ["a", "b", "c"]
    assert evaluate_exported(exported, DATA.test)["accuracy"] == totals["accuracy"]

    for main, arguments, sentence in (
        (evaluate, [workdir], "unknown dataset 'arrays': choose from digits, "),
        (export, [workdir, str(tmp_path / "other.zip")], "unknown dataset 'arrays': choose from digits, "),
        (evaluate, [file], "unknown dataset 'arrays': choose from digits, "),
    ):
        assert cli.run(main, arguments) == 2
        assert sentence in capsys.readouterr().err
    with pytest.raises(UserError, match=r"unknown dataset 'arrays': .* from Python data="):
        evaluate_run(workdir, model=Net)


def test_wrong_files_on_the_command_line(tmp_path, capsys):
    model = tmp_path / "net.py"
    model.write_text(FILE + "\n1 / 0\n")
    for flags, sentence in (
        (("--model", f"{model}:Net"), "fails at line 12 (ZeroDivisionError: division by zero): fix that line"),
        (("--model", f"{tmp_path / 'none.py'}:Net"), "there is no file"),
        (("--model", f"{'x' * 300}.py:Net"), "there is no file"),
        (("--model", ".py:"), "name one, for example my_file.py:Net"),
        (("--dataset", tmp_path / "none.npz"), "(No such file or directory"),
    ):
        assert cli.run(train_command, [str(flag) for flag in flags]) == 2
        assert sentence in capsys.readouterr().err.splitlines()[-1]
