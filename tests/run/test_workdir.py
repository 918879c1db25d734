"""The folder of a run: what it holds, and which are refused."""

import functools
import gzip
import json
import os
import shutil
import signal
from pathlib import Path

import entry
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from points import DATA, Net, run

from pmapdp.config import REMOVED_SETTINGS, Config
from pmapdp.errors import DivergedError, StoppedError, UserError
from pmapdp.loss import MetricSums, cross_entropy
from pmapdp.run.same_run import fixed_settings
from pmapdp.run.workdir import (
    lock_workdir,
    read_config,
    with_full_paths,
)
from pmapdp.train import load_run


def test_it_holds_what_the_page_says(finished):
    folder, result = finished
    assert {"config.json", "checkpoints", "metrics.jsonl", "log.txt"} <= set(
        os.listdir(folder)
    )
    lines = [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["event"] for line in lines] == ["start", "epoch", "epoch", "end"]
    assert [{"event": "epoch"} | epoch for epoch in result.epochs] == lines[1:3]
    (tensorboard,) = (
        file.read_bytes() for file in folder.glob("events.out.tfevents.*")
    )
    wanted = {
        b"train/accuracy": 2,
        b"test/loss": 2,
        b"\rlearning_rate": 2,
        b"examples_per_second": 2,
        b"configuration/text_summary": 1,
    }
    assert {tag: tensorboard.count(tag) for tag in wanted} == wanted


def test_a_signal_before_the_first_update_stops_the_run_in_good_order(tmp_path):
    """An error inside JAX, which compiles meanwhile, may end the process with 139."""

    def make_model(*, rngs):
        signal.raise_signal(signal.SIGINT)
        return Net(rngs=rngs)

    with pytest.raises(StoppedError, match="stopped by SIGINT before the first up"):
        run(make_model, workdir=str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_result_has_all_epochs_of_the_run_once(tmp_path):
    """Also one that was stopped in its middle, and with half a line that a kill left."""
    settings = {"workdir": str(tmp_path / "run"), "epochs": 3}
    assert [epoch["step"] for epoch in run(**settings, steps=7).epochs] == [5, 7]
    with open(tmp_path / "run" / "metrics.jsonl", "a") as file:
        file.write('{"event": "epo')
    found = run(**settings)
    assert [epoch["step"] for epoch in found.epochs] == [5, 10, 15]
    assert run(**settings).epochs == found.epochs


def test_the_loss_of_every_second_update_is_logged(tmp_path):
    """Over two epochs of five updates. The mean of all losses is the loss of the epoch, because batches are equal."""
    by_one = tmp_path / "one.jsonl"
    by_two = tmp_path / "two.jsonl"
    result = run(epochs=2, log_every=1, metrics_file=str(by_one))
    run(epochs=2, log_every=2, metrics_file=str(by_two))
    losses = {}
    for file in (by_one, by_two):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        updates = [line for line in lines if line["event"] == "update"]
        losses[file] = {update["step"]: update["loss"] for update in updates}
    assert list(losses[by_one]) == list(range(1, 11))
    even = {step: losses[by_one][step] for step in (2, 4, 6, 8, 10)}
    assert losses[by_two] == even
    mean = sum(losses[by_one][step] for step in range(1, 6)) / 5
    assert result.epochs[0]["train"]["loss"] == pytest.approx(mean, rel=1e-6)


def test_a_run_that_diverges_has_its_last_losses():
    with pytest.raises(DivergedError) as caught:
        run(epochs=9, learning_rate=1e38, optimizer="sgd")
    error = caught.value
    assert [step for step, _ in error.losses] == list(range(1, error.step + 1))
    finite = [bool(np.isfinite(loss)) for _, loss in error.losses]
    assert finite == [True] * (error.step - 1) + [False]


def test_tensorboard_shows_the_loss_within_an_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr("pmapdp.run.metrics_files.UPDATES_BETWEEN_POINTS", 2)
    run(workdir=str(tmp_path / "run"), epochs=1, steps=4)
    (tensorboard,) = (
        file.read_bytes() for file in (tmp_path / "run").glob("events.out.tfevents.*")
    )
    assert tensorboard.count(b"train/loss_of_update") == 2
    assert b"train/accuracy" in tensorboard
    assert b"train/examples" not in tensorboard


def test_tensorboard_has_the_losses_of_log_every(tmp_path):
    run(workdir=str(tmp_path / "run"), epochs=1, steps=5, log_every=1)
    (file,) = (tmp_path / "run").glob("events.out.tfevents.*")
    assert file.read_bytes().count(b"train/loss_of_update") == 5


def test_it_names_what_ran(finished):
    """The recipe, too, if it's the recipe's model and data that ran."""
    folder, _ = finished
    log = (folder / "log.txt").read_text()
    named = (
        "model    Net, 163 parameters",
        "loss     cross_entropy(label_smoothing=0.1)",
        "adam, constant, learning rate 0.005",
        "arrays",
    )
    assert [
        words for words in (*named, "epoch 2/2  train loss") if words not in log
    ] == []
    assert "recipe" not in log
    config = read_config(folder)
    assert (config.model, config.dataset, config.global_batch_size) == (
        "Net",
        "arrays",
        20,
    )
    assert (
        load_run(folder, model=Net)[2]["train"]["examples"] == DATA.train.num_examples
    )


def test_the_header_shows_the_settings_that_decide_the_result(capsys):
    """Those that have a line of their own aren't shown twice."""
    clipped = {"warmup_steps": 3, "clip_norm": 0.5, "weight_decay": 0.1, "patience": 2}
    run(steps=1, optimizer="adamw", **clipped)
    lines = capsys.readouterr().out.splitlines()
    (updates,) = [line for line in lines if line.startswith("updates")]
    assert updates.endswith("; adamw, constant, learning rate 0.005")
    (settings,) = [line for line in lines if line.startswith("settings")]
    assert settings == (
        "settings warmup_steps=3, weight_decay=0.1, clip_norm=0.5, patience=2"
    )

    run(steps=1)
    assert "settings" not in capsys.readouterr().out


def test_the_header_shows_the_learning_rate_of_the_batch(capsys):
    run(steps=1, scale_learning_rate="linear", base_batch_size=10)
    assert "learning rate 0.005, scaled to 0.01\n" in capsys.readouterr().out


def test_the_header_shows_no_learning_rate_beside_a_schedule_of_yours(capsys):
    run(custom={"schedule": optax.constant_schedule(0.1)}, steps=1, trainable=("head",))
    shown = capsys.readouterr().out
    assert "learning rate" not in shown
    assert "trained parameters" in shown


def class_weighted(model, batch, class_weights, name):
    losses = optax.softmax_cross_entropy_with_integer_labels(
        model(batch.inputs), batch.labels
    )
    weights = batch.weights * class_weights[batch.labels]
    return MetricSums((weights * losses).sum(), None, weights.sum())


@pytest.mark.parametrize(
    "settings",
    [
        {"learning_rate": 0.1},
        {"warmup_steps": 3},
        {"scale_learning_rate": "sqrt"},
    ],
)
def test_settings_that_a_schedule_of_yours_ignores_are_refused(settings):
    with pytest.raises(UserError, match="has no effect without a built-in sched"):
        run(custom={"schedule": lambda step: 0.1}, steps=1, **settings)


def test_a_schedule_of_yours_has_no_switches():
    settings = {"schedule": "piecewise", "switch_epochs": (3,)}
    with pytest.raises(UserError, match='the built-in schedule="piecewise" and switch'):
        run(custom={"schedule": lambda step: 0.1}, steps=1, **settings)


def test_a_weight_decay_that_an_optimizer_of_yours_ignores_is_refused():
    settings = {"optimizer": "adamw", "weight_decay": 0.1}
    words = 'weight_decay=0.1 has no effect without the built-in optimizer="adamw": '
    with pytest.raises(UserError, match=words):
        run(custom={"optimizer": optax.lion}, steps=1, **settings)


class WithLoss(Net):
    """A network whose class brings its loss along."""

    def loss(self, batch):
        return cross_entropy(self, batch)


@pytest.mark.parametrize(
    "custom",
    [
        {"loss": functools.partial(cross_entropy, label_smoothing=0.3)},
        {"loss": cross_entropy},
        {"model": WithLoss},
    ],
)
def test_a_label_smoothing_that_a_loss_of_yours_ignores_is_refused(custom):
    words = r"label_smoothing=0\.2 has no effect without the built-in loss"
    with pytest.raises(UserError, match=words):
        run(custom=custom, steps=1, label_smoothing=0.2)
    run(custom=custom, steps=1, label_smoothing=0.0)


def test_the_header_shows_no_smoothing_beside_a_cross_entropy_without_it(capsys):
    run(custom={"loss": cross_entropy}, steps=1)
    assert "loss     cross_entropy\n" in capsys.readouterr().out


def test_a_loss_with_an_array_as_its_argument_is_named(capsys):
    """The array has no truth value, and would fill the header."""
    weights = jnp.array([1.0, 2.0, 5.0])
    loss = functools.partial(class_weighted, class_weights=weights, name="classes")
    run(custom={"loss": loss}, steps=1)
    assert "loss     class_weighted(name=classes)\n" in capsys.readouterr().out


@pytest.mark.slow
def test_profile_is_a_trace_for_perfetto(tmp_path):
    """The updates that it slows down, from the fourth on, aren't in examples/s."""
    result = run(workdir=str(tmp_path / "run"), epochs=2, profile=True)
    speeds = [epoch["examples_per_second"] for epoch in result.epochs]
    assert speeds == [None, None]
    (trace,) = (tmp_path / "run").glob("profile/**/perfetto_trace.json.gz")
    with gzip.open(trace, "rt") as file:
        assert json.load(file)["traceEvents"]
    assert f"trace: open {trace} at ui" in (tmp_path / "run" / "log.txt").read_text()


def test_no_checkpoint_yet(folder, tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        load_run(tmp_path)
    shutil.rmtree(folder / "checkpoints")
    with pytest.raises(UserError, match="holds no checkpoint"):
        load_run(folder, model=Net)


RUN = '{"format": "pmapdp run %d", "config": {%s}}'


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 10_000,
        "null",
        RUN % (1, ""),
        RUN % (2, '"epochs": 0'),
        RUN % (2, '"x": 5'),
        '{"format": "pmapdp run 2", "config": 3}',
        '{"format": "pmapdp run 2"}',
    ],
)
def test_a_config_json_of_something_else_is_refused(tmp_path, text):
    """Also one of pmapdp 0.2, whose format has the number 1."""
    (tmp_path / "config.json").write_text(text)
    for use in (lambda: read_config(tmp_path), lock_workdir(str(tmp_path)).__enter__):
        with pytest.raises(UserError, match=r"config\.json .*name another folder"):
            use()
    assert (tmp_path / "config.json").read_text() == text


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ('"epochs": null', "epochs must be int, not None: try 20, the default"),
        (
            '"switch_epochs": 3',
            r"switch_epochs must be tuple\[int, ...\], not 3: try \(\)",
        ),
        ('"strategy": {}', "unknown strategy '{}'"),
        ('"epoch": 2', "unknown setting 'epoch': did you mean 'epochs'"),
        ('"strategy": "pmapp"', "unknown strategy 'pmapp': did you mean 'pmap'"),
        ('"global_batch_size": 0', "global_batch_size=0 must be at least 1"),
    ],
)
def test_a_mistake_in_an_edited_config_json_is_named(tmp_path, setting, words):
    (tmp_path / "config.json").write_text(RUN % (2, setting))
    with pytest.raises(UserError, match=rf"config\.json .*{words}.*: correct it"):
        read_config(tmp_path)


def test_a_config_json_of_before_may_have_settings_that_are_gone(tmp_path, monkeypatch):
    monkeypatch.setitem(REMOVED_SETTINGS, "sharpness", "leave it out")
    (tmp_path / "config.json").write_text(RUN % (2, '"epochs": 2, "sharpness": null'))
    assert read_config(tmp_path) == Config(epochs=2)
    done = entry.run_command("train", "--sharpness", 3)
    assert done.status == 2
    assert "--sharpness is gone: leave it out" in done.err


@pytest.mark.parametrize("workdir", ["/proc/pmapdp", "file", "a\\b", "x" * 300])
def test_a_folder_that_cannot_be_made_is_refused(tmp_path, monkeypatch, workdir):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    with (
        pytest.raises(
            UserError,
            match=r"workdir[= ].* cannot be written \(.*\): name .*runs/first",
        ),
        lock_workdir(workdir),
    ):
        pass
    assert os.listdir(tmp_path) == ["file"]


def test_paths_are_whole_and_a_moved_project_is_the_same_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    given = {
        "model": "net.py:Net",
        "dataset": "pictures",
        "schedule": "rate.py:rate",
        "workdir": "run",
    }
    config = with_full_paths(Config(**given))
    assert {name: getattr(config, name) for name in given} == {
        name: f"{tmp_path}/{value}" for name, value in given.items()
    }
    (tmp_path / "cnn").mkdir()  # a folder that happens to have a model's name
    assert with_full_paths(Config()) == Config()
    monkeypatch.setenv("HOME", str(tmp_path))
    assert with_full_paths(Config(workdir="~/run")).workdir == config.workdir
    (tmp_path / "moved" / "pictures").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "moved")
    assert fixed_settings(with_full_paths(Config(**given))) == fixed_settings(config)
