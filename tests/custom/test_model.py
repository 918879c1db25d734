"""Your model takes the same way as ours: from Python and from files, through evaluation, export and prediction."""

import functools
import json
import os
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx
from marks import quick
from points import DATA, Net, run

from pmapdp import cli
from pmapdp.data.dataset import DataSet, Split, Texts
from pmapdp.errors import UserError
from pmapdp.evaluate import evaluate_exported, evaluate_run
from pmapdp.evaluate import main as evaluate
from pmapdp.export import export_run, load_exported
from pmapdp.export import main as export
from pmapdp.loss import MetricSums
from pmapdp.predict import main as predict
from pmapdp.state import build, count_parameters
from pmapdp.train import main as train_command


class Typed(nnx.Module):
    def __init__(self, *, rngs, dtype=jnp.float32, param_dtype=jnp.float32):
        self.out = nnx.Linear(6, 3, dtype=dtype, param_dtype=param_dtype, rngs=rngs)

    def __call__(self, x):
        return self.out(x)


class LogitsAndFeatures(Net):
    def __call__(self, x):
        return super().__call__(x), x


class OneNumber(Net):
    def __call__(self, x):
        return super().__call__(x)[:, 0]


class OneLogit(Net):
    classes = 1


class WithContext(Net):
    def __call__(self, x, context):
        return super().__call__(x)


class Listed(nnx.Module):
    """Keeps its layers in a plain list, which is no place for them."""

    def __init__(self, *, rngs):
        self.layers = [nnx.Linear(6, 3, rngs=rngs)]


class Pictures(nnx.Module):
    def __init__(self, *, rngs):
        self.conv = nnx.Conv(1, 3, (3, 3), rngs=rngs)

    def __call__(self, x):
        return self.conv(x).mean((1, 2))


class LinenNet(linen.Module):
    """`[b, 6]` to three logits, as a program before NNX has it."""

    middle: Any = None

    @linen.compact
    def __call__(self, x):
        x = linen.RNN(linen.LSTMCell(8))(x[..., None])[:, -1]
        return linen.Dense(3)(x if self.middle is None else self.middle(x))


def bridged(module):
    """What builds a module of Linen as one of NNX."""
    return lambda rngs: nnx.bridge.lazy_init(nnx.bridge.ToNNX(module, rngs=rngs), jnp.ones((1, 6)))


def with_labels(make):
    return DataSet(*(Split(part.inputs, make(part)) for part in (DATA.train, DATA.test)))


PICTURES = DataSet(Split(np.zeros((40, 1, 12, 12), np.float32), np.zeros(40, np.int32)))


@pytest.mark.filterwarnings("error::UserWarning")  # of JAX, about float64
@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data": with_labels(lambda part: part.labels + 1)}, "are from 1 to 3, and Net has 3 logits: use 0 to 2, "),
        ({"data": DataSet([(np.ones(6), label) for label in (0, 1, 2, 0, 1, 3)])}, "have . and 3, and the model has 3"),
        ({"data": with_labels(lambda part: np.eye(3)[part.labels])}, r"float32 \[4, 3\]: of one-hot .* labels.argmax"),
        ({"data": with_labels(lambda part: part.labels / 2)}, r"labels are float32 \[4\]: .* labels.astype\('int32'\)"),
        ({"data": with_labels(lambda part: {"a": part.labels})}, r"labels are int32 \[4\]: .* a loss of your own"),
        (
            {"data": DataSet(*(Split(p.inputs[:, :5], p.labels) for p in DATA.parts.values()))},
            r"Net does not take ",
        ),
        ({"model": Pictures, "data": PICTURES}, r"Flax wants channels last, so give \[n, 12, 12, 1\]"),
        ({"data": DataSet(DATA.train, classes=("a", "b"))}, "the data name 2 classes, and Net has 3 logits: name all"),
        ({"data": DataSet(Texts(["good"], np.zeros(1)))}, "holds texts"),
        ({"model": OneLogit}, "OneLogit has a single logit: give it one for each class, or a loss of your own"),
        ({"model": OneNumber}, r"OneNumber gives float32 \[4\]"),
        ({"model": LogitsAndFeatures}, r"LogitsAndFeatures gives float32 \[4, 3\], float32 \[4, 6\]"),
        ({"model": WithContext}, "WithContext.__call__ has an argument context, which it no longer gets: leave it out"),
        ({"model": 5}, "5 cannot be built .*: give a class or function of rngs"),
        ({"model": lambda rngs: 5}, "gives 5: give a class or function of rngs"),
        ({"model": Listed}, "Listed.* cannot be built .*static attribute 'layers'"),
        ({"model": LinenNet}, "LinenNet.* cannot be built .*; one of Linen needs flax.nnx.bridge.ToNNX"),
        ({"model": bridged(LinenNet(linen.Dropout(0.5, deterministic=False)))}, "ToNNX draws random numbers from "),
    ],
)
def test_what_does_not_fit_is_one_sentence(change, sentence):
    with pytest.raises(UserError, match=sentence) as error:
        run(own={"model": Net, "data": DATA} | change, global_batch_size=None)
    assert "\n" not in str(error.value)


def test_a_model_that_was_built_is_one_sentence():
    with pytest.raises(UserError, match="model is a Net that was built already: give a class or function of rngs"):
        run(Net(rngs=nnx.Rngs(0)))


def test_types_are_given_to_models_that_name_them():
    found = run(Typed, dtype="float64", steps=1).state.params["out"]["kernel"]
    assert found.dtype == np.float64
    with pytest.raises(UserError, match=r"--dtype bfloat16 has no effect on .*Net'>, which takes no dtype"):
        run(dtype="bfloat16")
    assert count_parameters(nnx.state(build(Net))) == count_parameters(nnx.state(build(lambda rngs: Net(rngs=rngs))))


class Everything(nnx.Module):
    """`[b, 6]` to three logits, through one of each."""

    def __init__(self, *, rngs):
        self.embed = nnx.Embed(4, 8, rngs=rngs)
        self.lstm = nnx.RNN(nnx.LSTMCell(8, 8, rngs=rngs))
        self.gru = nnx.RNN(nnx.GRUCell(8, 8, rngs=rngs), rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, dropout_rate=0.2, decode=False, rngs=rngs)
        self.frozen = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
        self.norm = nnx.WeightNorm(nnx.Linear(8, 8, rngs=rngs), rngs=rngs)
        self.nothing = nnx.Dropout(0.0, rngs=rngs)
        self.adapted = nnx.LoRALinear(8, 8, lora_rank=2, rngs=rngs)
        self.first, self.tied = nnx.Linear(8, 8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)
        self.tied.kernel = self.first.kernel
        self.out, self.rngs = nnx.Linear(8, 3, rngs=rngs), rngs

    def __call__(self, x):
        tokens = (x > 0).astype(jnp.int32) + 2 * (x > 1).astype(jnp.int32)
        h = self.gru(self.lstm(self.embed(tokens)))
        h = self.frozen(self.attention(h)).mean(1)
        h = nnx.relu(self.adapted(self.nothing(self.norm(h))))
        return self.out(self.tied(nnx.tanh(self.first(h))))


@quick(0, "model", [Everything, bridged(LinenNet())])
def test_it_trains_resumes_evaluates_and_exports(tmp_path, model):
    """Stopped and resumed on three devices, it is what one device makes, within rounding."""
    workdir, file = str(tmp_path / "run"), tmp_path / "model.zip"
    alone = run(model, strategy="single", devices=1)
    run(model, workdir=workdir, devices=3, steps=2)
    found = run(model, workdir=workdir, devices=3)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), found.state.params, alone.state.params)
    loss = pytest.approx(found.epochs[-1]["test"]["loss"], rel=1e-5)
    assert evaluate_run(workdir, model=model, data=DATA)[0]["loss"] == loss
    export_run(workdir, file, model=model, data=DATA)
    assert evaluate_exported(load_exported(file), DATA.test)["loss"] == loss


class Nothing(Net):
    """Its loss is always 0; it takes a width as well."""

    def __init__(self, *, rngs, width=16):
        super().__init__(rngs=rngs)
        self.hidden, self.head = nnx.Linear(6, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)

    def loss(self, batch):
        return MetricSums((0 * batch.weights * self(batch.inputs).sum(1)).sum(), None, batch.weights.sum())


@pytest.mark.parametrize("build", [Nothing, functools.partial(Nothing, width=8), lambda rngs: Nothing(rngs=rngs)])
def test_a_models_loss_is_used_however_it_is_built(build):
    last = run(build, steps=2).epochs[-1]
    assert (last["train"]["loss"], last["test"]["loss"], "accuracy" in last["test"]) == (0, 0, False)


class Signs(nnx.Module):
    """The signs of a row's first numbers, each by one logit."""

    outputs = 1

    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, self.outputs, rngs=rngs)

    def __call__(self, x):
        return self.out(x)

    def loss(self, batch):
        z, y = self(batch.inputs), batch.labels.reshape(batch.labels.shape[0], -1)
        losses, right = (jnp.logaddexp(0, z) - z * y).mean(1), ((z > 0) == (y > 0)).mean(1)
        return MetricSums((batch.weights * losses).sum(), (batch.weights * right).sum(), batch.weights.sum())

    def predict(self, x):
        return {"probability": 1 / (1 + jnp.exp(-self(x)))}


class FourSigns(Signs):
    outputs = 4


@quick(1, ("model", "columns"), [(FourSigns, slice(0, 4)), (Signs, 0)])
def test_your_loss_is_evaluated_exported_and_asked(tmp_path, monkeypatch, capsys, model, columns):
    monkeypatch.chdir(tmp_path)
    data = with_labels(lambda part: (part.inputs[:, columns] > 0).astype(np.int32))
    values = {"model": model, "data": data}
    last = run(own=values, epochs=20, learning_rate=0.1, workdir="run").epochs[-1]["test"]
    assert last["accuracy"] > 0.95
    wanted = {name: pytest.approx(last[name], rel=1e-5) for name in ("loss", "accuracy")}
    assert {name: evaluate_run("run", **values)[0][name] for name in wanted} == wanted
    assert export_run("run", "model.zip", **values)["model"] == model.__name__
    exported = evaluate_exported(load_exported("model.zip"), data.test)
    assert {name: exported[name] for name in wanted} == wanted
    np.save("rows.npy", DATA.test.inputs)
    assert cli.run(predict, ["model.zip", "rows.npy", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if "{" in line]
    answers = np.array([line["outputs"]["probability"] for line in lines])
    assert np.mean((answers > 0.5) == data.test.labels.reshape(len(answers), -1)) == pytest.approx(last["accuracy"])


def test_a_run_of_values_is_evaluated_and_exported_with_them(tmp_path, capsys):
    workdir, file = str(tmp_path / "run"), str(tmp_path / "model.zip")
    data = DataSet(DATA.train, DATA.test, ("a", "b", "c"))
    last = run(own={"data": data}, workdir=workdir).epochs[-1]["test"]
    means, facts = evaluate_run(workdir, strategy="jit", devices=3, model=Net, data=data)
    assert (means["accuracy"], facts["dataset"]) == (last["accuracy"], "arrays")
    export_run(workdir, file, model=Net, data=data)
    assert load_exported(file).metadata["labels"] == ["a", "b", "c"]
    for main, arguments in (
        (evaluate, [workdir]),
        (export, [workdir, str(tmp_path / "other.zip")]),
        (evaluate, [file]),
    ):
        assert cli.run(main, arguments) == 2
        assert re.search("dataset 'arrays'|data of yours, arrays", capsys.readouterr().err)


FILE = """
import os
from flax import nnx

class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.out = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(x)

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sub"))
"""


def test_files_on_the_command_line(tmp_path, monkeypatch, capsys):
    """Every path is meant from where the command was started, also if the file changes the current folder."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "net.py").write_text(FILE)
    parts = ((f"{name}_{array}", part) for name, part in DATA.parts.items() for array in ("inputs", "labels"))
    arrays = {name: getattr(part, name.partition("_")[2]) for name, part in parts}
    np.savez(tmp_path / "points.npz", **arrays, classes=["a", "b", "c"])
    flags = ["--model", "net.py:Net", "--dataset", "points.npz", "--global-batch-size", "20", "--epochs", "2"]
    shown = {}
    for name, main, arguments in (
        ("train", train_command, [*flags, "--workdir", "run", "--metrics-file", "metrics.jsonl", "--devices", "3"]),
        ("evaluate", evaluate, ["run", "--strategy", "single", "--json"]),
        ("export", export, ["run", "model.zip"]),
        ("exported", evaluate, ["model.zip", "--dataset", "points.npz", "--json"]),
    ):
        monkeypatch.chdir(tmp_path)
        assert cli.run(main, arguments) == 0
        shown[name] = capsys.readouterr().out
    accuracies = [json.loads(shown[name])["test"]["accuracy"] for name in ("evaluate", "exported")]
    assert accuracies == [pytest.approx(float(re.search(r"last (0\.\d+)", shown["train"])[1]), abs=1e-4)] * 2
    there = set(os.listdir(tmp_path)) - {"__pycache__"}  # Python's own
    assert there == {"metrics.jsonl", "model.zip", "net.py", "points.npz", "run", "sub"}
    assert os.listdir(tmp_path / "sub") == []


@pytest.mark.parametrize(
    ("code", "line"),
    [
        ("1 / 0", "fails at line 2 (ZeroDivisionError: division by zero): fix that line"),
        ("class Net:\n    def __init__(self, rngs):\n        self.x = rngs.y.z", "cannot be built"),
        (
            "from flax import nnx\nclass Net(nnx.Linear):\n    def __init__(self, rngs):\n"
            "        super().__init__(2, 2, rngs=rngs)\n    def __call__(self, x):\n        return missing",
            "Net does not take inputs",
        ),
        ("", "my_net.py has no 'Net': use one of its names"),
        (None, "my_net.py:Net: there is no file "),
    ],
)
def test_errors_in_your_file_show_where(tmp_path, monkeypatch, capsys, code, line):
    """The traceback begins in your file, and the sentence comes last."""
    monkeypatch.chdir(tmp_path)
    if code is not None:
        Path("my_net.py").write_text(f"\n{code}\n")
    assert cli.run(train_command, ["--model", "my_net.py:Net", "--devices", "1"]) == 2
    *traceback, sentence = capsys.readouterr().err.splitlines()
    assert line in sentence
    if code:
        assert "my_net.py" in next(each for each in traceback if each.lstrip().startswith("File"))
        assert any(code.splitlines()[-1].strip() in each for each in traceback)
