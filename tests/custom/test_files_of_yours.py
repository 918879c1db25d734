"""Your model, optimizer, schedule and data from files, on the command line."""

import json
import os
import re
import shlex

import entry
import numpy as np
import pytest
import small_job

from pmapdp.train import load_run

FILE = """
import os
import optax
from points import Net

def make(schedule):
    return optax.chain(optax.clip(1.0), optax.adam(schedule, mu_dtype="bfloat16"))

def rate(step):
    return 0.01 * 0.9**step

os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), "sub"))
"""


TRAIN = shlex.split(
    "train --model my.py:Net --dataset data.npz --global-batch-size 18 "
    "--strategy single --no-compile-cache --no-progress"
)
FUNCTIONS = shlex.split("--optimizer my.py:make --schedule my.py:rate")
RUN = shlex.split(
    "--trainable head --epochs 2 --workdir run --metrics-file metrics.jsonl"
)


def test_they_train_resume_evaluate_and_export(tmp_path, monkeypatch):
    """Every path is meant from where the command was started, also if the file changes
    the current folder; moments of 16 bits are kept too."""
    arguments = [*TRAIN, *FUNCTIONS, *RUN]
    (tmp_path / "sub").mkdir()
    (tmp_path / "my.py").write_text(FILE)
    small_job.write_data(tmp_path)
    shown = []
    for command in (
        [*arguments, "--steps", 3],
        arguments,
        ["evaluate", "run", "--json"],
        ["export", "run", "model.zip"],
        ["evaluate", "model.zip", "--dataset", "data.npz", "--json"],
    ):
        monkeypatch.chdir(tmp_path)
        done = entry.run_command(*command)
        assert done.status == 0, done.err
        shown.append(done.out)
    assert "restored from the checkpoint of step 3" in shown[1]
    accuracy = pytest.approx(float(re.search(r"last (0\.\d+)", shown[1])[1]), abs=1e-4)
    assert [
        json.loads(output)["test"]["accuracy"] for output in (shown[2], shown[4])
    ] == [accuracy] * 2
    config, state, last = load_run(tmp_path / "run")
    assert (config.optimizer, config.trainable) == (f"{tmp_path}/my.py:make", ("head",))
    assert last["learning_rate"] == pytest.approx(0.01 * 0.9**7)
    assert {leaf.dtype for leaf in state.optimizer_state[1][0].mu["head"].values()} == {
        np.dtype("bfloat16")
    }
    there = set(os.listdir(tmp_path)) - {"__pycache__"}  # Python's own
    assert there == {"metrics.jsonl", "model.zip", "my.py", "data.npz", "run", "sub"}
    assert os.listdir(tmp_path / "sub") == []
    np.savez(
        "../data.npz", **{**np.load("../data.npz"), "test_labels": np.zeros(29, int)}
    )
    for command in (
        ["evaluate", tmp_path / "run"],
        ["export", tmp_path / "run", "model.zip"],
    ):
        done = entry.run_command(*command)
        assert done.status == 2
        assert "differs in the content of the data" in done.err


def test_an_error_in_a_library_names_your_line(tmp_path):
    (tmp_path / "yours.py").write_text(
        "import json\n\ndef make():\n    return json.loads('x')\n"
    )
    done = entry.run_command("train", "--dataset", f"{tmp_path}/yours.py:make")
    assert done.status == 2
    assert "yours.py:make fails (Expecting value" in done.err.splitlines()[-1]
    assert 'yours.py", line 4, in make' in done.err


def test_the_file_of_a_model_runs_once(tmp_path, monkeypatch):
    """It may take long, or write something."""
    monkeypatch.chdir(tmp_path)
    file = 'from points import Net\nopen("runs.txt", "a").write("ran ")\n'
    (tmp_path / "once.py").write_text(file)
    small_job.write_data(tmp_path)
    arguments = [word.replace("my.py", "once.py") for word in TRAIN]
    done = entry.run_command(*arguments, "--steps", 1)
    assert done.status == 0, done.err
    assert (tmp_path / "runs.txt").read_text() == "ran "
