"""The sums of a run on the host: exact, read late, and timed."""

import time

import numpy as np
import pytest

from pmapdp.errors import DivergedError
from pmapdp.loss import MetricSums
from pmapdp.metrics import READ_TOGETHER, UPDATES_AHEAD, Meter


def sums(loss, correct=1.0, count=2.0):
    return MetricSums(*map(np.float32, (loss, correct, count)))


SAVED = {"loss": 3.0, "correct": 1.0, "count": 4.0}
MANY = {"loss": 2.0**24, "correct": 0.0, "count": 1.0}
ERROR = MetricSums(np.float32(4), None, np.float32(8), {"error": np.float32(2)})


@pytest.mark.parametrize(
    ("saved", "added", "means"),
    [
        (
            {},
            sums(6.0, 3.0, 12.0),
            {"loss": 0.5, "accuracy": 0.25},
        ),  # tokens count, not examples
        ({}, ERROR, {"loss": 0.5, "error": 0.25}),
        (SAVED, sums(1.0, 2.0, 2.0), {"loss": 4 / 6, "accuracy": 0.5}),
        (MANY, sums(1.0, 0.0, 0.0), {"loss": 2.0**24 + 1, "accuracy": 0.0}),
    ],
    ids=["weights", "other metrics", "a resumed epoch", "double precision"],
)
def test_means_of_one_update(saved, added, means):
    meter = Meter(saved, 4)
    meter.add(1, added, 2)
    meter.finish()
    assert meter.means == means | {"examples": 6}
    assert Meter().means == {}


def test_the_host_runs_two_updates_ahead(monkeypatch):
    meter = Meter()
    waits = []
    monkeypatch.setattr("jax.block_until_ready", lambda sums: waits.append(sums.loss))
    for step in range(1, 6):
        meter.add(step, sums(step, 0, 1), 1)
        assert waits == list(range(1, step - UPDATES_AHEAD + 1))
    meter.finish()
    assert meter.sums == {"loss": 15, "correct": 0, "count": 5}


def test_metrics_are_read_together_and_counted_one_by_one():
    """By the number of updates alone, so that several processes do it alike.

    The means are over all examples.
    """
    random = np.random.default_rng(0)
    meter = Meter()
    losses = random.exponential(size=50).astype(np.float32)
    counts = random.integers(1, 20, 50).tolist()
    for step, (loss, count) in enumerate(zip(losses, counts, strict=True), start=1):
        meter.add(step, sums(loss, 1, count), count)
        read = max(0, step - UPDATES_AHEAD) // READ_TOGETHER * READ_TOGETHER
        assert (meter.examples, meter.sums.get("loss", 0)) == (
            sum(counts[:read]),
            sum(map(float, losses[:read])),
        )
    meter.finish()
    total = sum(counts)
    assert meter.means == {
        "loss": sum(map(float, losses)) / total,
        "accuracy": 50 / total,
        "examples": total,
    }


@pytest.mark.parametrize("loss", [np.nan, np.inf])
@pytest.mark.parametrize("last", [9, READ_TOGETHER + UPDATES_AHEAD])
def test_a_loss_that_is_not_finite_names_its_step(loss, last):
    """It may be read at the end or on the way."""
    meter = Meter()
    with pytest.raises(DivergedError, match=f"the loss is {loss} at step 7") as error:
        [
            meter.add(step, sums(loss if step == 7 else 1), 2)
            for step in range(1, last + 1)
        ] and meter.finish()
    assert error.value.step == 7


def test_what_compiles_is_not_timed():
    meter = Meter()
    assert meter.speed == {"examples_per_second": None, "step_ms": None}
    meter.add(1, sums(1), 64)
    time.sleep(0.2)
    meter.finish()
    assert meter.seconds >= 0.2
    meter.start_clock()
    for step in (2, 3):
        time.sleep(0.01)
        meter.add(step, sums(1), 64)
    meter.finish()
    assert 10 <= meter.speed["step_ms"] < 100
    assert meter.speed["examples_per_second"] == pytest.approx(
        64_000 / meter.speed["step_ms"]
    )
    assert meter.examples == 3 * 64  # but it counts
