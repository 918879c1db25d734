"""Promise 2: an epoch visits each example once, metrics are over exactly n examples,
and padding counts nowhere.
"""

import functools
import math

import entry
import jax
import numpy as np
import optax
import pytest
import small_job
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from small_job import Line
from trees import require_close

PARALLEL = ("pmap", "shard_map", "jit")


def points(n, seed, weights=None):
    return small_job.points(n, seed)._replace(weights=weights)


def visited(batch):
    return batch.indices[batch.weights > 0]


SIZES = {
    "n": (1, 60),
    "batch_size": (1, 20),
    "devices": (1, 8),
    "accumulate": (1, 3),
    "seed": (0, 9),
    "epoch": (0, 3),
}


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(data=st.data(), **{name: st.integers(*limits) for name, limits in SIZES.items()})
def test_an_epoch_visits_each_example_once(
    n, batch_size, devices, accumulate, seed, epoch, data
):
    """In an order that depends on seed and epoch alone, wherever in the epoch a run
    starts again.
    """
    examples, batch_size, accumulate = (
        points(n, 0),
        min(n, batch_size),
        min(n, batch_size, accumulate),
    )
    which = {"seed": seed, "epoch": epoch}
    found = entry.batches(
        examples, batch_size, devices=devices, accumulate=accumulate, **which
    )
    np.testing.assert_array_equal(
        np.sort(np.concatenate([visited(batch) for batch in found])), np.arange(n)
    )
    assert [len(visited(batch)) for batch in found] == [
        min(batch_size, n - at) for at in range(0, n, batch_size)
    ]
    # One compiled program serves all batches: they have one shape, which divides by
    # devices and micro-batches.
    micro_batch = math.ceil(batch_size / accumulate)
    rows = devices * accumulate * math.ceil(micro_batch / devices)
    for batch in found:
        assert {len(array) for array in batch} == {rows}
        assert set(np.unique(batch.weights)) <= {0, 1}
        np.testing.assert_array_equal(batch.inputs, examples.inputs[batch.indices])
        np.testing.assert_array_equal(batch.labels, examples.labels[batch.indices])
    step = data.draw(st.integers(0, len(found)))
    later = entry.batches(examples, batch_size, step=step, **which)  # on one device
    assert [set(visited(batch)) for batch in later] == [
        set(visited(batch)) for batch in found[step:]
    ]


def test_the_order_changes_with_epoch_and_seed_and_is_the_data_sets_in_evaluation():
    cases = [(0, 0), (0, 1), (1, 0), (None, 0)]
    orders = [
        [entry.batches(points(40, 0), 40, seed=seed, epoch=epoch)[0].indices]
        for seed, epoch in cases
    ]
    assert len({tuple(order) for (order,) in orders}) == len(cases)
    np.testing.assert_array_equal(orders[-1], [np.arange(40)])
    np.testing.assert_array_equal(
        orders[1], [np.random.default_rng([0, 1]).permutation(40)]
    )


def test_the_layout_of_a_batch_is_the_documented_one():
    """11 examples, 3 devices, 2 micro-batches of 6 and 5.

    Device 0 has its share of the first, then of the second.
    """
    (batch,) = entry.batches(points(11, 0), 11, devices=3, accumulate=2)
    assert batch.indices.tolist() == [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 0]
    assert batch.weights.tolist() == [*11 * [1], 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_have_the_precision_of_the_run(dtype):
    """In float32 a float64 run's sums of weighted losses would differ with the number
    of devices by 1e-8.
    """
    with jax.enable_x64(dtype == "float64"):
        assert entry.batches(points(5, 0), 3)[0].weights.dtype == dtype


def log_likelihoods(params, examples):
    logits = (
        examples.inputs.astype(np.float64) @ params["out"]["kernel"]
        + params["out"]["bias"]
    )
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


@pytest.mark.parametrize("strategy", entry.STRATEGIES)
def test_metrics_are_over_exactly_n_examples(strategy):
    """Also if the last batch is ragged: at learning rate 0 the loss of an epoch is
    NumPy's loss of the data set, whose training examples have weights."""
    weights = np.random.default_rng(4).uniform(0.5, 3, 83)
    train = points(83, 1, weights)
    test = points(29, 2)
    validation = points(31, 3)
    kind = {"strategy": strategy, "devices": 1 if strategy == "single" else 8}
    result = entry.train(
        model=Line,
        data=entry.data_set(train, test, validation),
        **kind,
        **{
            "learning_rate": 0.0,
            "optimizer": "sgd",
            "global_batch_size": 18,
            "epochs": 2,
            "label_smoothing": 0.0,
        },
    )
    for epoch in result.epochs:
        for part, examples in (("train", train), ("validation", validation)):
            found = log_likelihoods(result.state.params, examples)
            loss = -np.average(
                found[np.arange(len(found)), examples.labels], weights=examples.weights
            )
            accuracy = np.average(
                found.argmax(1) == examples.labels, weights=examples.weights
            )
            assert epoch[part]["loss"] == pytest.approx(loss, rel=1e-5)
            assert epoch[part]["accuracy"] == pytest.approx(accuracy, abs=1e-6)
        assert "test" not in epoch  # it waits until training is over


@functools.cache
def steps_of(strategy, model, devices=8):
    return entry.Steps(
        strategy,
        jax.devices()[: 1 if strategy == "single" else devices],
        model,
        optax.sgd(0.5),
    )


def trained_on(strategy, data, batches, model=Line, devices=8, rows=24):
    """Parameters after an update on each of some batches of indices, and the sums of
    each update.
    """
    steps = steps_of(strategy, model, devices)
    state = steps.place_state(steps.first_state())
    sums = []
    for indices in batches:
        state, of_update = steps.train_step(
            state, steps.place_batch(entry.batch_of(data, indices, rows))
        )
        sums.append(jax.device_get(of_update))
    return entry.named(entry.fetch(state)), sums


@pytest.mark.parametrize("strategy", entry.STRATEGIES)
def test_gradients_are_weighted_sums_over_the_sum_of_the_weights(strategy):
    """sum(w g) / sum(w) over the global batch, in NumPy.

    With weights, and devices that hold different numbers.
    """
    weights = np.random.default_rng(4).uniform(0.5, 3, 19)
    data = points(19, 1, weights)
    first = entry.named(steps_of("single", Line).first_state()).params["out"]
    delta = np.exp(log_likelihoods({"out": first}, data))
    losses = -np.log(delta[np.arange(19), data.labels])
    delta[np.arange(19), data.labels] -= 1
    delta *= weights[:, None] / weights.sum()
    found, (sums,) = trained_on(strategy, data, [np.arange(19)])
    np.testing.assert_allclose(
        found.params["out"]["kernel"],
        first["kernel"] - 0.5 * data.inputs.T @ delta,
        atol=1e-6,
    )
    np.testing.assert_allclose(
        found.params["out"]["bias"], first["bias"] - 0.5 * delta.sum(0), atol=1e-6
    )
    assert sums.count == pytest.approx(weights.sum(), rel=1e-6)
    assert sums.loss == pytest.approx((weights * losses).sum(), rel=1e-5)


class WithNorm(nnx.Module):
    def __init__(self, *, rngs):
        self.norm = nnx.BatchNorm(6, rngs=rngs)
        self.out = nnx.Linear(6, 3, rngs=rngs)

    def __call__(self, x):
        return self.out(self.norm(x))


@functools.cache
def without_padding(model):
    """The outcome of one device that sees as little padding as there must be."""
    return trained_on("single", points(19, 1), BATCHES, model)


# Example 0 is what padding is copied from.
BATCHES = [
    np.arange(1, 19),
    np.arange(1, 4),
]


@pytest.mark.parametrize("model", [Line, WithNorm])
@pytest.mark.parametrize("strategy", entry.STRATEGIES)
def test_padding_changes_nothing(strategy, model):
    """However many rows of it, and whatever they show."""
    data = points(19, 1)
    loud = data._replace(
        inputs=np.concatenate([1e4 * np.ones((1, 6), np.float32), data.inputs[1:]])
    )
    wanted, wanted_sums = without_padding(model)
    for rows in (24, 48):
        found, sums = trained_on(strategy, loud, BATCHES, model, rows=rows)
        require_close(found, wanted, atol=1e-6)
        for a, b in zip(sums, wanted_sums, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6)
        assert [float(update_sums.count) for update_sums in sums] == [18, 3]


def test_batch_norm_takes_moments_over_exactly_the_examples():
    """Running moments after one update, against NumPy.

    Devices hold 3, 3, 1 and 0 examples.
    """
    data = points(7, 5)
    first = entry.named(steps_of("single", WithNorm).first_state())
    for strategy in PARALLEL:
        found, _ = trained_on(
            strategy, data, [np.arange(7)], WithNorm, devices=4, rows=12
        )
        for name, value in (("mean", data.inputs.mean(0)), ("var", data.inputs.var(0))):
            start = np.asarray(first.model_state["norm"][name])
            wanted = 0.99 * start + 0.01 * value  # the momentum of Flax's BatchNorm
            np.testing.assert_allclose(
                found.model_state["norm"][name], wanted, atol=1e-7
            )


def test_evaluation_of_the_state_does_not_depend_on_the_batch():
    """Running moments and no dropout.

    An example has one answer, alone and in any company.
    """
    data = entry.examples_for("text_mlp", 9, 1)
    steps = entry.Steps("single", jax.devices()[:1], "text_mlp", optax.adam(1e-2))
    state = steps.place_state(steps.first_state())
    for _ in range(2):
        state, _ = steps.train_step(
            state, steps.place_batch(entry.batch_of(data, range(9)))
        )
    alone = [
        float(
            steps.eval_step(state, steps.place_batch(entry.batch_of(data, [i], 9))).loss
        )
        for i in range(9)
    ]
    together = float(
        steps.eval_step(state, steps.place_batch(entry.batch_of(data, range(9)))).loss
    )
    assert sum(alone) == pytest.approx(together, rel=1e-5)
