"""Your model, optimizer, schedule and data from files, on the command line."""

import json
import os
import re

import entry
import numpy as np
import pytest
from points import DATA

from pmapdp.train import load_run

FILE = """
import os
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

class Net(nnx.Module):
    def __init__(self, *, rngs):
        self.hidden, self.out = nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(nnx.relu(self.hidden(x)))

def make(schedule):
    return optax.chain(optax.clip(1.0), optax.adam(schedule, mu_dtype="bfloat16"))

def rate(step):
    return 0.01 * 0.9**step

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sub"))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    (tmp_path / "my.py").write_text(FILE)
    arrays = {f"{name}_inputs": part.inputs for name, part in DATA.parts.items()}
    arrays |= {f"{name}_labels": part.labels for name, part in DATA.parts.items()}
    np.savez(tmp_path / "points.npz", **arrays, classes=["a", "b", "c"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


TRAIN = ["train", "--model", "my.py:Net", "--dataset", "points.npz", "--global-batch-size", 20, "--strategy", "single"]
TRAIN += ["--no-compile-cache", "--no-progress", "--optimizer", "my.py:make", "--schedule", "my.py:rate"]


def test_they_train_resume_evaluate_and_export(folder, monkeypatch):
    """Every path is meant from where the command was started, also if the file changes the current folder; moments of
    16 bits are kept too."""
    arguments = [*TRAIN, "--trainable", "out", "--epochs", 2, "--workdir", "run", "--metrics-file", "metrics.jsonl"]
    shown = []
    for command in (
        [*arguments, "--steps", 3],
        arguments,
        ["evaluate", "run", "--json"],
        ["export", "run", "model.zip"],
        ["evaluate", "model.zip", "--dataset", "points.npz", "--json"],
    ):
        monkeypatch.chdir(folder)
        done = entry.run_command(*command)
        assert done.status == 0, done.err
        shown.append(done.out)
    assert "restored from the checkpoint of step 3" in shown[1]
    accuracy = pytest.approx(float(re.search(r"last (0\.\d+)", shown[1])[1]), abs=1e-4)
    assert [json.loads(each)["test"]["accuracy"] for each in (shown[2], shown[4])] == [accuracy] * 2
    config, state, last = load_run(folder / "run")
    assert (config.optimizer, config.trainable) == (f"{folder}/my.py:make", ("out",))
    assert last["learning_rate"] == pytest.approx(0.01 * 0.9**9)
    assert {leaf.dtype for leaf in state.optimizer_state[1][0].mu["out"].values()} == {np.dtype("bfloat16")}
    there = set(os.listdir(folder)) - {"__pycache__"}  # Python's own
    assert there == {"metrics.jsonl", "model.zip", "my.py", "points.npz", "run", "sub"}
    assert os.listdir(folder / "sub") == []
    np.savez("../points.npz", **{**np.load("../points.npz"), "test_labels": np.zeros(40, int)})
    for command in (["evaluate", folder / "run"], ["export", folder / "run", "model.zip"]):
        done = entry.run_command(*command)
        assert done.status == 2
        assert "differs in the content of the data" in done.err


def test_an_error_in_a_library_names_your_line(tmp_path):
    (tmp_path / "yours.py").write_text("import json\n\ndef make():\n    return json.loads('x')\n")
    done = entry.run_command("train", "--dataset", f"{tmp_path}/yours.py:make")
    assert done.status == 2
    assert "yours.py fails at line 4 (JSONDecodeError: " in done.err.splitlines()[-1]
