"""The best epoch, by a metric of yours, is kept and evaluated, ends a run early; each epoch calls your function."""

import json
import shutil
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from points import DATA, Net, run

from pmapdp.errors import StoppedError, UserError
from pmapdp.evaluate import evaluate_run
from pmapdp.export import export_run
from pmapdp.loss import MetricSums
from pmapdp.train import load_run

SETTINGS = {"epochs": 9, "best": "lowest:error", "keep_checkpoints": 2, "patience": 3}


def squared_error(model, batch):
    """A regression with a further metric; there is no accuracy."""
    errors = jnp.abs(model(batch.inputs)[:, 0] - batch.labels)
    loss = (batch.weights * errors**2).sum()
    error = (batch.weights * errors).sum()
    count = batch.weights.sum()
    # The first epoch, whose rate is 0, leaves the bias at 0: nothing divides its error,
    # which is NaN.
    return MetricSums(
        loss, None, count, {"error": (error, count * (model.head.bias[...] != 0).any())}
    )


# Then the rate rises until the error does, so that the best epoch is one of the next.
YOURS = {
    "schedule": lambda step: (step >= 5) * 0.02 * 1.25 ** (step - 5),
    "loss": squared_error,
}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that ended early, so that its best epoch is not among the newest; its best and its result."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    result = run(custom=YOURS, workdir=str(folder), **SETTINGS)
    return (
        folder,
        int(np.nanargmin([epoch["test"]["error"] for epoch in result.epochs])) + 1,
        result,
    )


def test_patience_ends_a_run_and_its_resumption_alike(stopped):
    folder, best, found = stopped
    assert 4 < len(found.epochs) == best + 3 < 9
    events = [
        json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()
    ]
    assert [
        np.isnan(event["test"]["error"])
        for event in events
        if event["event"] == "epoch"
    ][:2] == [True, False]
    assert (
        f"ended after epoch {best + 3}: the last 3 were no better"
        in (folder / "log.txt").read_text()
    )
    again = run(custom=YOURS, workdir=str(folder), **SETTINGS)
    np.testing.assert_equal(again.epochs, found.epochs)
    jax.tree.map(np.testing.assert_array_equal, again.state, found.state)


def test_the_result_is_the_best_epoch_with_and_without_a_workdir(stopped):
    """The states of all epochs are compared, so that it's the best one's and no other's."""
    folder, best, found = stopped
    states = []

    def keep(results, state):
        states.append(jax.device_get(state))

    alone = run(custom=YOURS | {"after_epoch": keep}, **SETTINGS)
    _, loaded, results = load_run(folder, best=True, model=Net)
    assert len(states) == best + 3
    assert results["epoch"] == best
    for state in (alone.state, found.state, loaded):
        assert int(state.step) == 5 * best
        jax.tree.map(np.testing.assert_array_equal, state, states[best - 1])
    last = load_run(folder, model=Net)[1]
    jax.tree.map(np.testing.assert_array_equal, last, states[-1])


def test_the_best_checkpoint_is_kept_and_evaluated(stopped, tmp_path):
    folder, best, found = stopped
    errors = [epoch["test"]["error"] for epoch in found.epochs]
    kept = [5 * best, 5 * best + 10, 5 * best + 15]
    assert (
        sorted(int(path.name) for path in (folder / "checkpoints").glob("[0-9]*"))
        == kept
    )
    for asked, error, step in (
        (True, np.nanmin(errors), kept[0]),
        (False, errors[-1], kept[-1]),
    ):
        totals, facts = evaluate_run(
            str(folder), best=asked, model=Net, data=DATA, **YOURS
        )
        assert totals["error"] == pytest.approx(error, rel=1e-5)
        assert facts["step"] == step
    assert (
        f"test error: best {np.nanmin(errors):.4f} (epoch {best}), last"
        in (folder / "log.txt").read_text()
    )
    without = shutil.copytree(
        folder, tmp_path / "run", ignore=shutil.ignore_patterns(str(kept[0]))
    )
    with pytest.raises(
        UserError, match="holds no checkpoint of its best epoch: leave best out"
    ):
        evaluate_run(str(without), best=True, model=Net, data=DATA, **YOURS)


@pytest.mark.slow
def test_the_best_checkpoint_is_exported(stopped, tmp_path):
    folder, best, found = stopped
    exported = export_run(
        str(folder),
        tmp_path / "model.zip",
        best=True,
        model=Net,
        data=DATA,
        loss=squared_error,
    )
    assert (exported["step"], exported["metrics"]["test"]) == (
        5 * best,
        found.epochs[best - 1]["test"],
    )


def test_a_function_after_each_epoch_and_a_stop(finished, tmp_path):
    """It gets the results and the state, and the training is what it is without it.

    In a notebook, without a workdir, the stop button leaves what was learned in the
    error, and another training runs. If all updates are made by then, the run ends as
    ever.
    """
    seen = []

    def note(results, state):
        seen.append((results, float(jnp.abs(state.params["head"]["kernel"]).sum())))
        results["epoch"] = 99
        if len(seen) == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(
        StoppedError, match="stopped by SIGINT after step 10: nothing was kept"
    ) as caught:
        run(custom={"after_epoch": note}, epochs=9)
    seen.clear()
    file = tmp_path / "metrics.jsonl"
    found = run(custom={"after_epoch": note}, epochs=2, metrics_file=str(file))
    assert [epoch["epoch"] for epoch in found.epochs] == [1, 2]
    written = [
        json.loads(line)["test"]["loss"]
        for line in file.read_text().splitlines()
        if '"epoch", ' in line
    ]
    assert [results["test"]["loss"] for results, _ in seen] == written
    assert seen[-1][1] == pytest.approx(
        np.abs(found.state.params["head"]["kernel"]).sum(), rel=1e-6
    )
    for state in (found.state, caught.value.state):
        jax.tree.map(np.testing.assert_array_equal, state, finished[1].state)
