"""The sums of a run on the host: exact, read late, and timed."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmapdp import metrics
from pmapdp.errors import DivergedError
from pmapdp.loss import MetricSums
from pmapdp.metrics import READ_TOGETHER, UPDATES_BEHIND, Meter, Totals


class Watched:
    """A number on a device that tells when the host waits for it."""

    def __init__(self, step: int, waits: list[int]):
        self.step, self.waits = step, waits

    def block_until_ready(self):
        self.waits.append(self.step)

    def __array__(self, dtype=None, copy=None):
        return np.ones((), np.float32)


def sums(loss, correct=1.0, count=2.0):
    return MetricSums(*map(jnp.float32, (loss, correct, count)))


def test_means_are_those_of_all_examples():
    random = np.random.default_rng(0)
    counts = random.integers(1, 20, 50)
    losses = [random.exponential(size=n) for n in counts]
    right = [random.integers(0, 2, n) for n in counts]
    meter = Meter()
    for step, (loss, correct) in enumerate(zip(losses, right, strict=True)):
        meter.add(step + 1, sums(loss.sum(), correct.sum(), len(loss)), len(loss))
    found = meter.finish()
    means = found.means("test_")
    assert means.keys() == {"test_loss", "test_accuracy"}
    np.testing.assert_allclose(means["test_loss"], np.concatenate(losses).mean(), rtol=1e-6)  # each sum is a float32
    assert means["test_accuracy"] == np.concatenate(right).mean()
    assert (found.examples, found.count) == (counts.sum(), counts.sum())


def test_sums_are_added_in_double_precision():
    """In float32, adding 1 to 2^24 changes nothing."""
    totals = Totals(loss=2.0**24)
    for _ in range(10):
        totals = totals.add(sums(1.0), 2)
    assert totals.loss == 2.0**24 + 10


def test_weights_count_and_not_examples():
    """A language model counts tokens: the mean is over the weights."""
    totals = Totals().add(sums(6.0, correct=3.0, count=12.0), examples=2)
    assert totals.means() == {"loss": 0.5, "accuracy": 0.25}
    assert totals.examples == 2


def test_a_loss_without_classes_has_no_accuracy_and_others_are_means_too():
    given = MetricSums(np.float32(4), None, np.float32(8), {"error": np.float32(2)})
    assert Totals().add(given, 8).means("train_") == {"train_loss": 0.5, "train_error": 0.25}


def test_an_update_is_waited_for_when_two_more_have_been_started():
    meter, waits = Meter(), []
    for step in range(1, 6):
        meter.add(step, MetricSums(Watched(step, waits), None, np.float32(1)), 1)
        assert waits == list(range(1, step - UPDATES_BEHIND + 1))
    assert meter.finish().loss == 5


def test_metrics_are_read_together_or_after_a_second(monkeypatch):
    """The sums are those of one update after the other, to the last bit."""
    monkeypatch.setattr(metrics, "SECONDS_UNREAD", np.inf)  # first, however slow this machine is
    losses, meter = np.random.default_rng(0).exponential(size=50).astype(np.float32), Meter()
    for step, loss in enumerate(losses, start=1):
        meter.add(step, sums(loss), 2)
        read = max(0, step - UPDATES_BEHIND) // READ_TOGETHER * READ_TOGETHER
        assert meter.totals.examples == 2 * read
        assert meter.totals.loss == sum(map(float, losses[:read]))
    assert meter.finish().loss == sum(map(float, losses))
    monkeypatch.setattr(metrics, "SECONDS_UNREAD", 0.0)
    for step in range(1, 10):
        meter.add(step, sums(1.0), 2)
        assert meter.totals.examples == 100 + 2 * max(0, step - UPDATES_BEHIND)


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_names_its_step(loss, monkeypatch):
    monkeypatch.setattr(metrics, "SECONDS_UNREAD", np.inf)
    meter, last = Meter(), READ_TOGETHER + UPDATES_BEHIND
    for step in range(1, last):
        meter.add(step, sums(loss if step == 7 else 1), 2)
    with pytest.raises(DivergedError, match=f"the loss is {loss} at step 7: try a lower --learning-rate") as error:
        meter.add(last, sums(1), 2)
    assert error.value.step == 7


def test_the_first_update_that_is_not_finite_is_the_one_named_at_the_end():
    meter = Meter()
    meter.add(1, sums(1), 2)
    meter.add(2, sums(np.nan), 2)
    with pytest.raises(DivergedError, match="at step 2"):
        meter.finish()


def test_what_compiles_is_not_timed(compilations):
    jax.clear_caches()
    meter = Meter()
    assert (meter.examples_per_second, meter.step_ms) == (None, None)
    time.sleep(0.2)
    meter.add(1, sums(1), 64)
    assert meter.restart_clock() >= 0.2
    assert meter.examples_per_second is None
    for step in (2, 3):
        time.sleep(0.01)
        meter.add(step, sums(1), 64)
    meter.finish()
    assert 10 <= meter.step_ms < 100
    assert meter.examples_per_second == pytest.approx(64 / (meter.step_ms / 1000))
    assert meter.totals.examples == 3 * 64  # but it counts
    before = len(compilations)
    for step in range(4, 4 + 2 * READ_TOGETHER):
        meter.add(step, sums(1), 64)
    assert len(compilations) == before


def test_a_resumed_epoch_goes_on_from_its_sums():
    kept = Totals(loss=3.0, count=4.0, examples=4, others={"accuracy": 1.0})
    meter = Meter(kept)
    meter.add(3, sums(1.0, correct=2.0, count=2.0), 2)
    assert meter.finish() == Totals(loss=4.0, count=6.0, examples=6, others={"accuracy": 3.0})
