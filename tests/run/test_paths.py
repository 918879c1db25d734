"""Names of folders and files with every character that a pattern, a shell, an address or a format reads in another way:
they are taken literally, by every command."""

import dataclasses
import json
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from marks import quick
from run_folders import JOB, refusal

from pmapdp import cli
from pmapdp.errors import UserError
from pmapdp.evaluate.__main__ import main as evaluate
from pmapdp.export.__main__ import main as export
from pmapdp.job import prepare
from pmapdp.predict import main as predict
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.state import create_state
from pmapdp.train import train

CHARACTERS = "[]{}*?!~$%#&;'\"<>|()^`=+,:@ \n\t\x01\x7f\N{EM DASH}\N{SNOWMAN}\u202e"
NAMES = [
    *("run[1]", "{a,b}", "**", "~root", "$HOME", "%s%(x)s{0}", "..x", "x.", "file:", "s3:", "-x", "--devices"),
    *("1", "x.orbax-checkpoint-tmp", "e\u0301", "\N{SNOWMAN}" * 80),
    *CHARACTERS,
]
WORST = "p[1]{a,b}*?!~$%s#&;'\" \N{SNOWMAN}"


@pytest.fixture(scope="module")
def job():
    return prepare(JOB)


@pytest.fixture(scope="module")
def state(job):
    return create_state(job.task, job.strategy.state_sharding)


@quick(len(NAMES) - len(CHARACTERS), "name", NAMES)
def test_a_checkpoint_is_found_again_in_a_folder_of_any_name(tmp_path, job, state, name):
    checkpoints = Checkpoints(tmp_path / name / "checkpoints", keep=1)
    for step in (1, 2):
        checkpoints.save(step, state, {})
    checkpoints.close()
    found = Checkpoints(tmp_path / name / "checkpoints", only_read=True)
    assert found.steps() == [2]
    jax.tree.map(np.testing.assert_array_equal, found.read(2, job.task).state, jax.device_get(state))
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    "name", ["a\\b", "\\", "gs:", "gs:/x", "xgs:", "\udcff", "a\udcfe\udcffb", "a\\b/w", "\udcff/w"]
)
def test_a_folder_that_tensorstore_would_not_use_is_refused_at_once(tmp_path, name):
    """It takes a backslash for a slash or for an error, and its names are UTF-8."""
    with pytest.raises(UserError, match="checkpoints cannot be below a folder with a backslash, with gs: at its end"):
        train(dataclasses.replace(JOB, workdir=str(tmp_path / name)))
    assert os.listdir(tmp_path) == []


def test_a_local_folder_with_the_name_of_a_cloud(job, state):
    """`/gs/run` is where somebody may have mounted a bucket."""
    from pmapdp.run.literal_path import LiteralPath

    for name in ("/gs/run", "/s3/run", "/az/x"):
        assert os.fspath(LiteralPath(name) / "18") == f"{name}/18"


def test_all_commands_in_a_folder_of_the_worst_name(tmp_path, monkeypatch, capsys):
    """Workdir, model, data, metrics and export."""
    folder = tmp_path / WORST
    folder.mkdir()
    monkeypatch.chdir(folder)
    Path("net[1].py").write_text(
        "from flax import nnx\n"
        "class Net(nnx.Module):\n"
        "    def __init__(self, *, rngs):\n"
        "        self.out = nnx.Linear(28 * 28, 2, rngs=rngs)\n"
        "    def __call__(self, inputs):\n"
        "        return self.out(inputs.reshape(inputs.shape[0], -1) / 255)\n"
    )
    images, labels = np.zeros((300, 28, 28, 1), np.uint8), np.arange(300) % 2
    images[labels == 1] = 200
    arrays = {"train_inputs": images, "train_labels": labels, "test_inputs": images, "test_labels": labels}
    np.savez("data{a,b}*.npz", **arrays)
    np.save("two*.npy", images[:2])
    config = dataclasses.replace(
        JOB, model="net[1].py:Net", dataset="data{a,b}*.npz", workdir="run[*]", metrics_file="m%s[*].jsonl"
    )
    assert train(config).epochs[-1]["test_examples"] == 300
    assert train(config).epochs == []  # resumed
    assert not os.path.exists("run[*]/damaged")
    for main, arguments in (
        (evaluate, ["run[*]", "--json"]),
        (export, ["run[*]", "model?#.zip"]),
        (evaluate, ["model?#.zip", "--json"]),
        (predict, ["model?#.zip", "two*.npy"]),
    ):
        capsys.readouterr()
        assert cli.run(main, arguments) == 0
        if "--json" in arguments:
            assert json.loads(capsys.readouterr().out)["test_examples"] == 300
    made = {"net[1].py", "data{a,b}*.npz", "two*.npy", "run[*]", "m%s[*].jsonl", "model?#.zip"}
    assert set(os.listdir()) - {"__pycache__"} == made
    assert os.listdir(tmp_path) == [WORST]


def test_data_that_was_edited_is_refused_on_resume(tmp_path):
    """Under the same name, in the same shape."""
    arrays = {f"{part}_inputs": np.zeros((300, 28, 28, 1), np.uint8) for part in ("train", "test")}
    arrays |= {f"{part}_labels": np.arange(300) % 10 for part in ("train", "test")}
    np.savez(tmp_path / "data.npz", **arrays)
    config = dataclasses.replace(JOB, dataset=str(tmp_path / "data.npz"), workdir=str(tmp_path / "run"), steps=1)
    train(config)
    train(config)
    for name in arrays:
        changed = arrays[name].copy()
        changed[-1] += 1
        np.savez(tmp_path / "data.npz", **arrays | {name: changed % 10})
        sentence = refusal(tmp_path / "run", dataset=config.dataset)
        assert "of another configuration, which differs in the content of the data ('" in sentence
    np.savez(tmp_path / "data.npz", **arrays)
    train(config)
