"""A finished run is trained on, longer or with another learning rate; one that has not ended resumes as it began."""

import json
import shutil

import jax
import numpy as np
import pytest
from points import DATA, Net, run

from pmapdp.errors import UserError
from pmapdp.evaluate.evaluation import evaluate_run
from pmapdp.run.trained import load_run, read_config


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The folder of a run of one epoch."""
    folder = tmp_path_factory.mktemp("ended") / "run"
    run(workdir=str(folder))
    return folder


@pytest.fixture
def folder(ended, tmp_path):
    return shutil.copytree(ended, tmp_path / "run")


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def events(folder, name):
    return [
        each for each in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if each["event"] == name
    ]


def test_longer_is_bit_for_bit_what_was_trained_at_once(folder):
    """Case 16: with a constant rate one epoch and then another are two epochs."""
    found = run(workdir=str(folder), epochs=2)
    assert_same(found.state, run(epochs=2).state)
    assert "trained on after its end, with epochs (1 there, 2 now)" in (folder / "log.txt").read_text()
    assert events(folder, "changes") == [{"event": "changes", "step": 5, "epochs": [1, 2]}]
    assert read_config(folder).epochs == 2


def test_with_another_learning_rate(folder):
    """From update 6 on the rate is the new one, and the run, its evaluation and another start go on from there."""
    found = run(workdir=str(folder), epochs=3, learning_rate=1e-4)
    assert [each["learning_rate"] for each in found.epochs] == [pytest.approx(1e-4)] * 2
    totals, _ = evaluate_run(str(folder), model=Net, data=DATA)
    assert totals.means()["loss"] == pytest.approx(found.epochs[-1]["test_loss"], rel=1e-6)
    assert_same(run(workdir=str(folder), epochs=3, learning_rate=1e-4).state, found.state)


def test_stopped_on_the_way_it_resumes_bit_for_bit(folder, tmp_path):
    """Contract 4 holds for what is trained on, also before its first new checkpoint."""
    straight = shutil.copytree(folder, tmp_path / "straight")
    wanted = run(workdir=str(straight), epochs=3, learning_rate=1e-3)
    for steps in (6, 9, None):
        found = run(workdir=str(folder), epochs=3, learning_rate=1e-3, steps=steps)
    assert_same(found.state, wanted.state)
    assert load_run(folder, model=Net)[2]["epoch"] == 3


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"learning_rate": 1e-4}, r"has made its 1 epochs, and differs in learning_rate \(0.005 there, 0.0001 now\)"),
        ({"learning_rate": 1e-4}, "give --epochs 6 to train it on"),
        ({"epochs": 2, "optimizer": "sgd"}, r"optimizer \('adam' there, 'sgd' now\): use .* --init-from starts"),
        ({"epochs": 2, "seed": 1}, r"differs in seed \(0 there, 1 now\)"),
    ],
)
def test_what_cannot_be_changed_is_one_sentence(folder, change, sentence):
    before = (folder / "config.json").read_bytes()
    with pytest.raises(UserError, match=sentence):
        run(workdir=str(folder), **change)
    assert (folder / "config.json").read_bytes() == before


def test_a_run_that_has_not_ended_keeps_its_settings(tmp_path):
    settings = {"workdir": str(tmp_path / "run"), "epochs": 3}
    run(**settings, steps=7)
    with pytest.raises(
        UserError, match=r"has not ended \(step 7\), and differs in epochs \(3 there, 4 now\): train it"
    ):
        run(**settings | {"epochs": 4})
    assert_same(run(**settings).state, run(epochs=3).state)
