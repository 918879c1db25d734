"""`pmapdp.evaluate`: the same exact figures however the test set is spread, of a run and of an exported model."""

import json
import os

import numpy as np
import pytest

from pmapdp import cli, export
from pmapdp.config import Config
from pmapdp.evaluate import main as evaluate
from pmapdp.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a short run, the file exported from it, and the results of its last epoch."""
    folder = tmp_path_factory.mktemp("evaluate")
    workdir, file = str(folder / "run"), str(folder / "model.zip")
    config = Config(model="mlp", devices=8, per_device_batch_size=16, epochs=1, workdir=workdir, progress=False)
    result = train(config)
    assert cli.run(export.main, [workdir, file]) == 0
    return workdir, file, result.epochs[-1]


def result_of(capsys, *arguments):
    capsys.readouterr()
    assert cli.run(evaluate, [*arguments, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("flags", "strategy", "devices"),
    [
        ("", "pmap", 8),
        ("--devices 3", "pmap", 3),
        ("--strategy jit", "jit", 8),
        ("--strategy single", "single", 1),
        ("--strategy shard_map --devices 2", "shard_map", 2),
        ("FILE", "exported", 1),
    ],
)
def test_same_figures_however_spread(run, capsys, flags, strategy, devices):
    workdir, file, expected = run
    before = sorted(os.walk(workdir))
    result = result_of(capsys, *([file] if flags == "FILE" else [workdir, *flags.split()]))
    assert (result["strategy"], result["devices"], result["step"]) == (strategy, devices, 12)
    assert result["test"]["accuracy"] == expected["test"]["accuracy"]
    assert result["test"]["loss"] == pytest.approx(expected["test"]["loss"], abs=1e-6)
    assert result["test"]["examples"] == 360
    assert sorted(os.walk(workdir)) == before


def test_for_people(run, capsys):
    workdir, file, expected = run
    for model in (workdir, file):
        assert cli.run(evaluate, [model]) == 0
        first, second, _ = capsys.readouterr().out.splitlines()
        assert first.startswith(f"test loss {expected['test']['loss']:.4f}")
        assert first.endswith(f" accuracy {expected['test']['accuracy']:.4f}")
        assert second == "360 examples of digits, after 12 updates"


DATA = """
import numpy as np
from pmapdp.data.dataset import DataSet, Split
open("ran", "w").close()
def make():
    part = Split(np.zeros((20, 28, 28, 1), np.uint8), np.arange(20, dtype=np.int32) % 10)
    return DataSet(part, part)
"""


def test_code_that_a_file_names_is_not_run(tmp_path, monkeypatch, capsys):
    """An exported model of data from a Python file is evaluated on that only if you name the file yourself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.py").write_text(DATA)
    train(Config(model="mlp", strategy="single", dataset="data.py:make", epochs=1, workdir="run", progress=False))
    assert cli.run(export.main, ["run", "model.zip"]) == 0
    assert str(tmp_path).encode() not in (tmp_path / "model.zip").read_bytes()
    os.remove("ran")
    capsys.readouterr()
    assert cli.run(evaluate, ["model.zip"]) == 2
    sentence = "error: model.zip was trained on data of yours, data.py:make: name it, as in --dataset my_data.npz\n"
    assert capsys.readouterr().err == sentence
    assert not os.path.exists("ran")
    assert result_of(capsys, "model.zip", "--dataset", "data.py:make")["test"]["examples"] == 20


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["RUN", "FILE"], "unrecognized arguments: FILE: try python -m pmapdp.evaluate runs/first"),
        (["nowhere"], "nowhere holds no run"),
        (["FILE", "--strategy", "jit"], "FILE is an exported model, for one device and of one epoch: leave out --best"),
        (
            ["FILE", "--dataset", "rows.npz"],
            "the model takes {'dtype': 'uint8', 'shape': ['batch', 28, 28, 1]}",
        ),
        (["FILE", "--dataset", "reviews"], "the model takes no texts: give the data of its training"),
        (["RUN", "--dataset", "digits"], "RUN is a run, which knows its data: leave out --dataset"),
        (["RUN", "--strategy", "pmpa"], "unknown strategy 'pmpa': did you mean 'pmap'?"),
        (["RUN", "--devices", "-1"], "--devices -1 must be at least 1"),
        (["RUN", "--strategy", "single", "--devices", "4"], "--strategy single runs on one device, not 4"),
    ],
)
def test_mistakes(run, capsys, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    rows, labels = np.zeros((20, 6), np.float32), np.arange(20, dtype=np.int32) % 10
    np.savez("rows.npz", train_inputs=rows, train_labels=labels, test_inputs=rows, test_labels=labels)
    names = {"RUN": run[0], "FILE": run[1]}
    for name, path in names.items():
        sentence = sentence.replace(name, path)
    capsys.readouterr()
    assert cli.run(evaluate, [names.get(argument, argument) for argument in arguments]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"error: {sentence}")
    assert (output.err.count("\n"), output.out) == (1, "")
