"""`pmapdp.evaluate`: the same exact figures however the test set is spread, of a run
and of an exported model.
"""

import json
import os

import entry
import numpy as np
import optax
import points
import pytest

from pmapdp.config import Config
from pmapdp.errors import UserError
from pmapdp.evaluate import change_config, evaluate_run
from pmapdp.export import export_run
from pmapdp.train import load_run, train

DATA = """
import numpy as np
from pmapdp.data.dataset import DataSet, Split
open("ran", "w").close()
def make():
    part = Split(np.zeros((20, 6), np.float32), np.arange(20, dtype=np.int32) % 3)
    return DataSet(part, part)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a short run, the file exported from it, and the results of its last
    epoch.
    """
    folder = tmp_path_factory.mktemp("evaluate")
    workdir = str(folder / "run")
    file = str(folder / "model.zip")
    config = Config(
        model="mlp",
        devices=2,
        per_device_batch_size=64,
        epochs=1,
        workdir=workdir,
        progress=False,
    )
    result = train(config)
    export_run(workdir, file)
    return workdir, file, result.epochs[-1]["test"]


def result_of(*arguments):
    done = entry.run_command("evaluate", *arguments, "--json")
    assert done.status == 0, done.err
    return json.loads(done.out)


@pytest.mark.parametrize(
    ("flags", "strategy", "devices"),
    [
        ("", "pmap", 2),
        ("--devices 3 --strategy jit", "jit", 3),
        ("--strategy single", "single", 1),
        ("FILE", "exported", 1),
    ],
)
def test_same_figures_however_spread(run, flags, strategy, devices):
    workdir, file, expected = run
    before = sorted(os.walk(workdir))
    result = result_of(*([file] if flags == "FILE" else [workdir, *flags.split()]))
    assert (result["strategy"], result["devices"], result["step"]) == (
        strategy,
        devices,
        12,
    )
    assert (result["test"]["accuracy"], result["test"]["examples"]) == (
        expected["accuracy"],
        360,
    )
    assert result["test"]["loss"] == pytest.approx(expected["loss"], abs=1e-6)
    assert sorted(os.walk(workdir)) == before


def test_a_run_with_an_optimizer_and_a_schedule_from_python(folder):
    """The optimizer is asked for by its argument. The schedule isn't needed."""
    custom = {
        "optimizer": lambda schedule: optax.sgd(schedule, momentum=0.5),
        "schedule": lambda step: 0.1 * 0.9**step,
    }
    expected = points.run(custom=custom, workdir="run").epochs[-1]["test"]
    parts = {"model": points.Net, "data": points.DATA}
    readers = {
        "evaluate_run": lambda **more: evaluate_run("run", **parts, **more)[0],
        "export_run": lambda **more: export_run("run", "x.zip", **parts, **more),
        "load_run": lambda **more: load_run("run", model=points.Net, **more),
    }
    for name, read in readers.items():
        with pytest.raises(
            UserError, match=r"given its optimizer from Python"
        ) as error:
            read()
        assert f"import {name}; {name}('run'" in str(error.value)
        assert "did you mean" not in str(error.value)
        result = read(optimizer=custom["optimizer"])
        if name == "evaluate_run":
            assert result["loss"] == pytest.approx(expected["loss"], abs=1e-6)


def test_an_evaluation_needs_nothing_of_the_schedule():
    config = Config(schedule="piecewise", switch_epochs=(3,), switch_factor=0.5)
    assert change_config(config, None, None, None).schedule == "constant"


def test_for_people(run):
    first, second, _ = entry.run_command("evaluate", run[1]).out.splitlines()
    assert first.startswith(f"test loss {run[2]['loss']:.4f}")
    assert first.endswith(f" accuracy {run[2]['accuracy']:.4f}")
    assert second == "360 examples of digits, after 12 updates"


def test_code_that_a_file_names_is_not_run(folder):
    """An exported model of data from a Python file is evaluated on that only if you
    name the file yourself.
    """
    (folder / "data.py").write_text(DATA)
    config = Config(
        strategy="single",
        dataset="data.py:make",
        epochs=1,
        workdir="run",
        progress=False,
    )
    train(config, model=points.Net)
    export_run("run", "model.zip", model=points.Net)
    assert str(folder).encode() not in (folder / "model.zip").read_bytes()
    os.remove("ran")
    done = entry.run_command("evaluate", "model.zip")
    sentence = "error: model.zip was trained on data of yours, data.py:make: name it, "
    sentence += "as in --dataset my_data.npz\n"
    assert (done.status, done.err) == (2, sentence)
    assert not os.path.exists("ran")
    assert result_of("model.zip", "--dataset", "data.py:make")["test"]["examples"] == 20


def write_npz(file, inputs, labels):
    """Training and test set are the same."""
    train = {"train_inputs": inputs, "train_labels": labels}
    np.savez(file, **train, test_inputs=inputs, test_labels=labels)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["FILE", "--strategy", "jit"],
            "FILE is an exported model, for one device and of one epoch: leave out "
            "--best",
        ),
        (
            ["FILE", "--dataset", "rows.npz"],
            "the model takes {'dtype': 'uint8', 'shape': ['batch', 28, 28, 1]}",
        ),
        (
            ["FILE", "--dataset", "eleven.npz"],
            "the test labels are from 0 to 10, and the model has 10 logits",
        ),
        (
            ["FILE", "--dataset", "reviews"],
            "the model takes no texts: give the data of its training",
        ),
        (
            ["RUN", "--dataset", "digits"],
            "RUN is a run, which knows its data: leave out --dataset",
        ),
        (["RUN", "--devices", "0"], "--devices 0 must be at least 1: try --devices 8"),
    ],
)
def test_mistakes(run, folder, arguments, sentence):
    write_npz("rows.npz", np.zeros((20, 6), np.float32), np.arange(20) % 10)
    write_npz("eleven.npz", np.zeros((20, 28, 28, 1), np.uint8), np.arange(20) % 11)
    names = {"RUN": run[0], "FILE": run[1]}
    done = entry.run_command("evaluate", *(names.get(word, word) for word in arguments))
    for name, path in names.items():
        sentence = sentence.replace(name, path)
    assert (done.status, done.err.count("\n"), done.out) == (2, 1, "")
    assert done.err.startswith(f"error: {sentence}")
