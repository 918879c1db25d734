import json
import os

import pytest
from marks import quick

from pmapdp import cli
from pmapdp.config import Config
from pmapdp.evaluate.__main__ import main as evaluate
from pmapdp.export import __main__ as export
from pmapdp.train import train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a short run, the file exported from it, and the metrics of its last epoch."""
    folder = tmp_path_factory.mktemp("evaluate")
    workdir, file = str(folder / "run"), str(folder / "model.zip")
    config = Config(
        model="mlp",
        strategy="pmap",
        devices=8,
        per_device_batch_size=16,
        learning_rate=5e-3,
        epochs=1,
        workdir=workdir,
        progress=False,
        compile_cache=False,
    )
    result = train(config)
    assert cli.run(export.main, [workdir, file]) == 0
    return workdir, file, result.epochs[-1]


@quick(
    2,
    "spread",
    [
        ["--devices", "3"],
        ["--strategy", "jit"],
        ["--strategy", "single"],
        [],
        ["--strategy", "shard_map", "--devices", "2"],
        ["--strategy=single", "--devices=1"],
    ],
)
def test_same_figures_however_spread(run, capsys, spread):
    workdir, _, expected = run
    capsys.readouterr()
    assert cli.run(evaluate, [workdir, "--json", *spread]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["test"]["accuracy"] == expected["test"]["accuracy"]
    assert result["test"]["loss"] == pytest.approx(expected["test"]["loss"], abs=1e-6)
    assert result["test"]["examples"] == expected["test"]["examples"] == 360
    assert result["step"] == expected["step"] == 12


def test_spread_as_asked(run, capsys):
    workdir, _, _ = run
    for arguments, strategy, devices in [
        ([], "pmap", 8),
        (["--devices", "3"], "pmap", 3),
        (["--strategy", "single"], "single", 1),
    ]:
        assert cli.run(evaluate, [workdir, "--json", *arguments]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["strategy"], result["devices"]) == (strategy, devices)


def test_exported_has_the_same_figures(run, capsys):
    _, file, expected = run
    capsys.readouterr()
    assert cli.run(evaluate, [file, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["test"]["accuracy"] == expected["test"]["accuracy"]
    assert result["test"]["loss"] == pytest.approx(expected["test"]["loss"], abs=1e-6)
    assert result["test"]["examples"] == 360
    assert result["step"] == 12


def test_for_people(run, capsys):
    workdir, file, expected = run
    figures = f"test loss {expected['test']['loss']:.4f}"
    for arguments in ([workdir], [file]):
        assert cli.run(evaluate, arguments) == 0
        first, second, _ = capsys.readouterr().out.splitlines()
        assert first.startswith(figures)
        assert first.endswith(f" accuracy {expected['test']['accuracy']:.4f}")
        assert second == "360 examples of digits, after 12 updates"


def test_nothing_is_written(run):
    workdir, _, _ = run
    before = sorted(os.walk(workdir))
    assert cli.run(evaluate, [workdir]) == 0
    assert sorted(os.walk(workdir)) == before


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "the following arguments are required: MODEL: try python -m pmapdp.evaluate runs/first"),
        (["RUN", "FILE"], "unrecognized arguments: FILE: try python -m pmapdp.evaluate runs/first"),
        (["nowhere"], "nowhere holds no run"),
        (
            ["FILE", "--strategy", "jit"],
            "FILE is an exported model, for one device: leave out --strategy and --devices",
        ),
        (["FILE", "--devices", "2"], "FILE is an exported model, for one device: leave out --strategy and --devices"),
        (["RUN", "--strategy", "pmpa"], "unknown strategy 'pmpa': did you mean 'pmap'?"),
        (["RUN", "--devices", "two"], "--devices 'two' is not a whole number: try --devices 8"),
        (["RUN", "--devices", "0"], "--devices 0 must be at least 1"),
        (["RUN", "--strategy", "single", "--devices", "4"], "--strategy single runs on one device, not 4"),
        (["RUN", "--devcies", "4"], "unknown argument '--devcies': did you mean '--devices'?"),
    ],
)
def test_mistakes(run, capsys, arguments, sentence):
    names = {"RUN": run[0], "FILE": run[1]}
    for name, path in names.items():
        sentence = sentence.replace(name, path)
    capsys.readouterr()
    assert cli.run(evaluate, [names.get(argument, argument) for argument in arguments]) == 2
    output = capsys.readouterr()
    assert output.err.startswith(f"error: {sentence}")
    assert output.err.count("\n") == 1
    assert output.out == ""
