"""`--init-from`: the weights of another run, or of an exported file, in place of random ones."""

import jax
import numpy as np
import pytest
from points import DATA, FiveClasses, Net, run

from pmapdp import cli
from pmapdp.errors import UserError
from pmapdp.export import export_run
from pmapdp.train import main as train_command


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with a run of one epoch and its exported file; and its last state."""
    folder = tmp_path_factory.mktemp("source")
    state = run(workdir=str(folder / "run")).state
    export_run(str(folder / "run"), folder / "model.zip", model=Net, data=DATA)
    return folder, state


@pytest.mark.parametrize("name", ["run", "model.zip"])
def test_it_starts_from_the_weights_and_says_so(source, tmp_path, name):
    """With a learning rate of 0 the weights stay as they were, and update counts and moments start anew."""
    folder, state = source
    settings = {"workdir": str(tmp_path / "run"), "init_from": str(folder / name), "learning_rate": 0.0}
    found = run(**settings)
    jax.tree.map(np.testing.assert_array_equal, found.state.params, state.params)
    assert int(found.state.step) == 5
    log, metrics = ((tmp_path / "run" / each).read_text() for each in ("log.txt", "metrics.jsonl"))
    assert f"starts from 4 arrays of {folder / name}, which had made 5 updates\n" in log
    assert '"event": "init_from"' in metrics
    again = run(**settings, steps=5)  # resumed: it starts from its own checkpoint
    assert int(again.state.step) == 5
    assert (tmp_path / "run" / "log.txt").read_text().count("starts from") == 1
    with pytest.raises(UserError, match="differs in init_from"):  # what a run began with belongs to it
        run(**settings | {"init_from": None})


def test_another_head_starts_as_the_seed_makes_it(source, tmp_path):
    folder, state = source
    settings = {"learning_rate": 0.0, "workdir": str(tmp_path / "run")}
    found = run(FiveClasses, init_from=str(folder / "run"), **settings).state.params
    np.testing.assert_array_equal(found["hidden"]["kernel"], state.params["hidden"]["kernel"])
    fresh = run(FiveClasses, learning_rate=0.0).state.params
    np.testing.assert_array_equal(found["head"]["kernel"], fresh["head"]["kernel"])
    log = (tmp_path / "run" / "log.txt").read_text()
    assert "starts from 2 arrays of" in log
    assert "as the seed makes them: head.bias [5] ([3] there), head.kernel [16, 5] ([16, 3] there)" in log


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("none", "none cannot be read (No such file or directory): name the --workdir of a run, or a file of python"),
        ("", "holds no run (no config.json): name the --workdir of a training run"),
        ("damaged.zip", "damaged.zip cannot be read ("),
        ("text.txt", "text.txt cannot be read (File is not a zip file): name the --workdir of a run"),
        ("model.zip", "has no array of MLP, for example no hidden1.bias: name"),
    ],
)
def test_a_wrong_path_is_one_sentence(source, tmp_path, monkeypatch, capsys, path, sentence):
    monkeypatch.chdir(tmp_path)
    content = (source[0] / "model.zip").read_bytes()
    for name, each in (("damaged.zip", content[:-100]), ("text.txt", b"text"), ("model.zip", content)):
        (tmp_path / name).write_bytes(each)
    path = path or str(tmp_path)
    arguments = ["--model", "mlp", "--devices", "1", "--no-compile-cache", "--epochs", "1", "--init-from", path]
    assert cli.run(train_command, arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert sentence in line


def test_it_is_never_replaced_by_the_metrics(source, capsys):
    file = str(source[0] / "model.zip")
    assert cli.run(train_command, ["--init-from", file, "--metrics-file", file]) == 2
    assert "also a file that this command reads" in capsys.readouterr().err
