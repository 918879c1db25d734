"""The best epoch is kept and evaluated, ends a run early, and each epoch calls a function of one's own."""

import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from points import DATA, Net, run

from pmapdp import cli
from pmapdp.errors import StoppedError, UserError
from pmapdp.evaluate import evaluate_exported, evaluate_run
from pmapdp.evaluate import main as evaluate
from pmapdp.export import export_run, load_exported
from pmapdp.loss import MetricSums

# The rate rises until the loss does, so that the best epoch is one of the first.
RISING = {"schedule": lambda step: 0.02 * 1.25**step}
SETTINGS = {"epochs": 9, "best": "lowest:loss", "keep_checkpoints": 2}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run whose best epoch is not among its newest checkpoints, and its epochs."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    return folder, run(own=RISING, workdir=str(folder), **SETTINGS).epochs


@pytest.mark.slow
def test_the_best_checkpoint_is_kept_evaluated_and_exported(finished):
    folder, epochs = finished
    losses = [each["test"]["loss"] for each in epochs]
    best = int(np.argmin(losses)) + 1
    assert best < 8, losses
    assert sorted(int(path.name) for path in (folder / "checkpoints").glob("[0-9]*")) == [5 * best, 40, 45]
    for asked, loss in ((True, min(losses)), (False, losses[-1])):
        totals, facts = evaluate_run(str(folder), best=asked, model=Net, data=DATA, **RISING)
        assert totals["loss"] == pytest.approx(loss, rel=1e-5)
        assert facts["step"] == (5 * best if asked else 45)
    file = folder.parent / "model.zip"
    exported = export_run(str(folder), file, best=True, model=Net, data=DATA)
    assert exported["step"] == 5 * best
    assert exported["metrics"]["test"]["loss"] == min(losses)
    assert evaluate_exported(load_exported(file), DATA.test)["loss"] == pytest.approx(min(losses), rel=1e-5)
    assert f"test loss: best {min(losses):.4f} (epoch {best}), last" in (folder / "log.txt").read_text()


def test_patience_ends_a_run_and_its_resumption_alike(finished, tmp_path):
    _, epochs = finished
    best = int(np.argmin([each["test"]["loss"] for each in epochs])) + 1
    settings = SETTINGS | {"workdir": str(tmp_path / "run"), "patience": 2}
    found = run(own=RISING, **settings)
    assert [each["test"]["loss"] for each in found.epochs] == [each["test"]["loss"] for each in epochs[: best + 2]]
    assert f"ended after epoch {best + 2}: the last 2 were no better" in (tmp_path / "run" / "log.txt").read_text()
    again = run(own=RISING, **settings)
    assert again.epochs == []
    jax.tree.map(np.testing.assert_array_equal, again.state, found.state)


def absolute_error(model, batch):
    """A regression with a further sum; there is no accuracy."""
    errors = jnp.abs(model(batch.inputs)[:, 0] - batch.labels)
    return MetricSums(
        (batch.weights * errors**2).sum(), None, batch.weights.sum(), {"error": (batch.weights * errors).sum()}
    )


def test_a_metric_of_ones_own_may_decide(tmp_path):
    own = {"loss": absolute_error}
    epochs = run(own=own, epochs=4, best="highest:error", workdir=str(tmp_path / "run")).epochs
    worst = max(epochs, key=lambda each: each["test"]["error"])
    totals, facts = evaluate_run(str(tmp_path / "run"), best=True, model=Net, data=DATA, **own)
    assert facts["step"] == worst["step"]
    assert totals["error"] == pytest.approx(worst["test"]["error"], rel=1e-5)
    assert "test error: best" in (tmp_path / "run" / "log.txt").read_text()


def test_a_metric_that_there_is_not():
    with pytest.raises(UserError, match="unknown --best 'highest:acuracy': did you mean 'highest:accuracy'"):
        run(best="highest:acuracy")


def test_no_best_epoch_to_evaluate(finished, tmp_path, capsys):
    """A run of an earlier version kept no such checkpoint."""
    folder, _ = finished
    file = tmp_path / "model.zip"
    file.write_bytes(b"")
    assert cli.run(evaluate, [str(file), "--best"]) == 2
    assert "is an exported model, for one device and of one epoch: leave out --best" in capsys.readouterr().err
    (oldest, *_) = sorted((folder / "checkpoints").glob("[0-9]*"), key=lambda path: int(path.name))
    oldest.rename(tmp_path / "away")
    try:
        with pytest.raises(UserError, match="no longer holds the checkpoint of its best epoch: leave --best out"):
            evaluate_run(str(folder), best=True, model=Net, data=DATA, **RISING)
    finally:
        (tmp_path / "away").rename(oldest)


def test_a_function_after_each_epoch(tmp_path):
    """It gets the results and the state, and the training is what it is without it."""
    seen = []

    def note(results, state):
        seen.append((results, float(jnp.abs(state.params["head"]["kernel"]).sum())))
        results["epoch"] = 99

    file = tmp_path / "metrics.jsonl"
    found = run(own={"after_epoch": note}, epochs=3, metrics_file=str(file))
    assert [each["epoch"] for each in found.epochs] == [1, 2, 3]
    written = [json.loads(line)["test"]["loss"] for line in file.read_text().splitlines() if '"epoch", ' in line]
    assert [results["test"]["loss"] for results, _ in seen] == written
    assert seen[-1][1] == pytest.approx(np.abs(found.state.params["head"]["kernel"]).sum(), rel=1e-6)
    jax.tree.map(np.testing.assert_array_equal, found.state, run(epochs=3).state)


def interrupt(results, state):
    """As the stop button of a notebook does, in the middle of a cell."""
    if results["epoch"] == 2:
        signal.raise_signal(signal.SIGINT)


def test_interrupted_it_leaves_its_state_and_python_goes_on():
    """In a notebook, without a workdir: what was learned is in the error, and another training runs."""
    with pytest.raises(StoppedError, match="stopped by SIGINT after step 10: nothing was kept") as caught:
        run(own={"after_epoch": interrupt}, epochs=9)
    wanted = run(epochs=2).state
    jax.tree.map(np.testing.assert_array_equal, caught.value.state, wanted)
