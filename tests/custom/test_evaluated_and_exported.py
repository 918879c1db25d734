"""What others reported of models of their own, each with its right result. Cases that stand beside their subject are in
the other files of this folder and in `tests/run/`; `test_programs_around.py` has those of programs and notebooks."""

import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from marks import quick
from points import DATA, Net, run

from pmapdp import cli
from pmapdp.data.dataset import DataSet, Split
from pmapdp.errors import UserError
from pmapdp.evaluate.evaluation import evaluate_exported, evaluate_run
from pmapdp.export.read import load_exported
from pmapdp.export.write import export_run
from pmapdp.loss import MetricSums
from pmapdp.predict import main as predict


class Nothing(Net):
    """Its own loss is always 0; it takes a width as well."""

    def __init__(self, *, rngs, width=16):
        super().__init__(rngs=rngs)
        self.hidden, self.head = nnx.Linear(6, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)

    def loss(self, batch):
        return MetricSums((0 * batch.weights * self(batch.inputs).sum(1)).sum(), None, batch.weights.sum())


@pytest.mark.parametrize(
    "build",
    [Nothing, functools.partial(Nothing, width=8), lambda rngs: Nothing(rngs=rngs, width=8)],
    ids=["class", "partial", "function"],
)
def test_a_models_own_loss_is_used_however_it_is_built(build):
    """Case 02: of a partial or a function it was ignored, and the cross-entropy was trained."""
    last = run(build, steps=2).epochs[-1]
    assert (last["train"]["loss"], last["test"]["loss"]) == (0, 0)
    assert "accuracy" not in last["test"]


class OneLogit(nnx.Module):
    """Whether a row's first number is above 0, by one logit."""

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


class ManyLabels(OneLogit):
    """The same of four numbers."""

    outputs = 4


@quick(0, ("model", "columns"), [(OneLogit, 0), (ManyLabels, slice(0, 4))])
def test_a_loss_of_ones_own_is_evaluated_exported_and_asked(tmp_path, monkeypatch, capsys, model, columns):
    """Case 03: export and evaluation knew softmax alone; one logit had an accuracy of 0.5, several labels crashed."""
    monkeypatch.chdir(tmp_path)
    parts = (Split(part.inputs, (part.inputs[:, columns] > 0).astype(np.int32)) for part in (DATA.train, DATA.test))
    own = {"model": model, "data": DataSet(*parts)}
    last = run(own=own, epochs=20, learning_rate=0.1, workdir="run").epochs[-1]
    assert last["test"]["accuracy"] > 0.95
    wanted = pytest.approx(last["test"], rel=1e-5)
    assert evaluate_run("run", **own)[0] == wanted
    export_run("run", "model.zip", **own)
    assert evaluate_exported(load_exported("model.zip"), own["data"].test) == wanted
    np.save("rows.npy", DATA.test.inputs)
    assert cli.run(predict, ["model.zip", "rows.npy", "--json"]) == 0
    answers = [
        json.loads(line)["outputs"]["probability"] for line in capsys.readouterr().out.splitlines() if "{" in line
    ]
    labels = own["data"].test.labels.reshape(len(answers), -1)
    assert np.mean((np.array(answers) > 0.5) == labels) == pytest.approx(last["test"]["accuracy"])


class Listed(nnx.Module):
    """Keeps its layers in a plain list, which is no place for them."""

    def __init__(self, *, rngs):
        self.layers = [nnx.Linear(6, 3, rngs=rngs)]

    def __call__(self, x):
        return self.layers[0](x)


def test_layers_in_a_plain_list():
    """Case 15: it was said to be the fault of the inputs."""
    with pytest.raises(
        UserError, match=r"static attribute 'layers' .*: keep layers and arrays in nnx.List or nnx.Dict"
    ):
        run(Listed)


def of_kind(change):
    """The data with both arrays of each part in another form."""
    return DataSet(*(change(part) for part in (DATA.train, DATA.test)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "names"),
    [
        (of_kind(lambda part: tuple(part)), "012"),
        (of_kind(lambda part: Split(part.inputs.tolist(), part.labels.tolist())), "012"),
        (of_kind(lambda part: Split(part.inputs, np.array(["a", "b", "c"])[part.labels])), "abc"),
    ],
    ids=["tuples", "lists", "names as labels"],
)
def test_what_trains_is_exported(tmp_path, data, names):
    """Case 13: tuples and lists trained and were evaluated, and could not be exported."""
    last = run(own={"data": data}, workdir=str(tmp_path / "run")).epochs[-1]
    assert last["test"]["loss"] == run().epochs[-1]["test"]["loss"]
    export_run(str(tmp_path / "run"), tmp_path / "model.zip", model=Net, data=data)
    assert load_exported(tmp_path / "model.zip").metadata["labels"] == list(names)
