"""The sums of a run on the host: exact, read late, and timed."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmapdp.errors import DivergedError
from pmapdp.loss import MetricSums
from pmapdp.metrics import READ_TOGETHER, UPDATES_AHEAD, Meter


def sums(loss, correct=1.0, count=2.0):
    return MetricSums(*map(np.float32, (loss, correct, count)))


def test_means_are_over_all_examples():
    random = np.random.default_rng(0)
    counts = random.integers(1, 20, 50)
    losses = [random.exponential(size=n) for n in counts]
    right = [random.integers(0, 2, n) for n in counts]
    meter = Meter()
    for step, (loss, correct) in enumerate(zip(losses, right, strict=True)):
        meter.add(step + 1, sums(loss.sum(), correct.sum(), len(loss)), len(loss))
    meter.finish()
    assert meter.means.keys() == {"loss", "accuracy", "examples"}
    np.testing.assert_allclose(meter.means["loss"], np.concatenate(losses).mean(), rtol=1e-6)  # sums are float32
    assert meter.means["accuracy"] == np.concatenate(right).mean()
    assert meter.means["examples"] == counts.sum()


KEPT = {"loss": 3.0, "correct": 1.0, "count": 4.0}
MANY = {"loss": 2.0**24, "correct": 0.0, "count": 1.0}
ERROR = MetricSums(np.float32(4), None, np.float32(8), {"error": np.float32(2)})


@pytest.mark.parametrize(
    ("kept", "added", "means"),
    [
        ({}, sums(6.0, 3.0, 12.0), {"loss": 0.5, "accuracy": 0.25}),  # tokens count, not examples
        ({}, ERROR, {"loss": 0.5, "error": 0.25}),
        (KEPT, sums(1.0, 2.0, 2.0), {"loss": 4 / 6, "accuracy": 0.5}),
        (MANY, sums(1.0, 0.0, 0.0), {"loss": 2.0**24 + 1, "accuracy": 0.0}),
    ],
    ids=["weights", "other metrics", "a resumed epoch", "double precision"],
)
def test_one_update(kept, added, means):
    meter = Meter(kept, 4)
    meter.add(1, added, 2)
    meter.finish()
    assert meter.means == means | {"examples": 6}


def test_no_example_has_no_means():
    assert Meter().means == {}


class Watched:
    """A number on a device that tells when the host waits for it."""

    def __init__(self, step: int, waits: list[int]):
        self.step, self.waits = step, waits

    def block_until_ready(self):
        self.waits.append(self.step)

    def __array__(self, dtype=None, copy=None):
        return np.ones((), np.float32)


def test_the_host_runs_two_updates_ahead():
    meter, waits = Meter(), []
    for step in range(1, 6):
        meter.add(step, MetricSums(Watched(step, waits), None, np.float32(1)), 1)
        assert waits == list(range(1, step - UPDATES_AHEAD + 1))
    meter.finish()
    assert meter.sums == {"loss": 5, "count": 5}


def test_metrics_are_read_together_and_counted_one_by_one():
    """By the number of updates alone, so that several processes do it alike; the sums are exact to the last bit."""
    losses, meter = np.random.default_rng(0).exponential(size=50).astype(np.float32), Meter()
    for step, loss in enumerate(losses, start=1):
        meter.add(step, sums(loss), 2)
        read = max(0, step - UPDATES_AHEAD) // READ_TOGETHER * READ_TOGETHER
        assert (meter.examples, meter.sums.get("loss", 0)) == (2 * read, sum(map(float, losses[:read])))
    meter.finish()
    assert meter.sums["loss"] == sum(map(float, losses))


@pytest.mark.parametrize("loss", [np.nan, np.inf])
@pytest.mark.parametrize("last", [9, READ_TOGETHER + UPDATES_AHEAD])
def test_a_loss_that_is_not_finite_names_its_step(loss, last):
    """Whether it is read at the end or on the way."""
    meter = Meter()
    with pytest.raises(DivergedError, match=f"the loss is {loss} at step 7: try a lower --learning-rate") as error:
        [meter.add(step, sums(loss if step == 7 else 1), 2) for step in range(1, last + 1)] and meter.finish()
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
    assert meter.speed["examples_per_second"] == pytest.approx(64_000 / meter.speed["step_ms"])
    assert meter.examples == 3 * 64  # but it counts


def test_metrics_of_a_replicated_array_are_read_once():
    mesh = jax.make_mesh((8,), ("data",))
    with jax.set_mesh(mesh):
        each = jax.device_put(jnp.float32(3), jax.NamedSharding(mesh, jax.P()))
    meter = Meter()
    meter.add(1, MetricSums(each, None, each), 3)
    meter.finish()
    assert meter.sums == {"loss": 3, "count": 3}
