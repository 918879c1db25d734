"""Contract 2: an epoch visits each example once, in an order that depends on seed and epoch alone."""

import itertools
import math

import jax
import numpy as np
import pytest

from pmapdp.data.batches import Batches
from pmapdp.data.dataset import Split


def numbered(n: int) -> Split:
    """n examples whose input and label are their own number."""
    return Split(np.arange(n, dtype=np.int32)[:, None], np.arange(n, dtype=np.int32))


def visited(batches: Batches, epoch: int) -> list[int]:
    """The examples in the order of the padded rows."""
    return [int(i) for batch in batches.epoch(epoch) for i in batch.indices[batch.weights > 0]]


SIZES = [
    (n, B, N, K)
    for n, B, N, K in itertools.product((1, 2, 7, 23, 64, 83), (1, 3, 8, 18, 64), (1, 2, 3, 5, 7, 8), (1, 2, 3))
    if n >= B >= K
]


def test_every_example_is_visited_exactly_once():
    assert len(SIZES) > 200
    for n, B, N, K in SIZES:
        batches = Batches(numbered(n), B, devices=N, accumulate=K, shuffle_seed=1)
        sizes = [int(batch.weights.sum()) for batch in batches.epoch(3)]
        assert sorted(visited(batches, 3)) == list(range(n)), (n, B, N, K)
        assert sizes == [min(B, n - start) for start in range(0, n, B)], (n, B, N, K)
        assert len(sizes) == batches.per_epoch == math.ceil(n / B)


def test_all_batches_have_one_shape_that_divides_by_devices_and_micro_batches():
    for n, B, N, K in SIZES:
        batches = list(Batches(numbered(n), B, devices=N, accumulate=K, shuffle_seed=1).epoch(0))
        rows = {len(array) for batch in batches for array in batch}
        assert rows == {N * K * math.ceil(math.ceil(B / K) / N)}, (n, B, N, K)


def test_rows_hold_what_their_index_says():
    for n, B, N, K in SIZES:
        for batch in Batches(numbered(n), B, devices=N, accumulate=K, shuffle_seed=2).epoch(1):
            np.testing.assert_array_equal(batch.inputs[:, 0], batch.indices)
            np.testing.assert_array_equal(batch.labels, batch.indices)
            assert set(np.unique(batch.weights)) <= {0.0, 1.0}


def test_the_same_examples_make_a_step_on_any_number_of_devices():
    for n, B in ((83, 18), (64, 64), (23, 7)):
        alone = [batch.indices for batch in Batches(numbered(n), B, shuffle_seed=4).epoch(2)]
        for N, K in itertools.product((2, 3, 5, 8), (1, 2, 3)):
            spread = Batches(numbered(n), B, devices=N, accumulate=K, shuffle_seed=4).epoch(2)
            for whole, batch in zip(alone, spread, strict=True):
                examples = batch.indices[batch.weights > 0]
                assert set(examples) <= set(whole)


def test_the_layout_is_the_documented_one():
    """11 examples, 3 devices, 2 micro-batches of 6 and 5: rows 0 to 1 and 2 to 3 of device 0 are its two shares."""
    batch = Batches(numbered(11), 11, devices=3, accumulate=2).take(np.arange(11))
    by_device = batch.indices.reshape(3, 2, 2)
    weights = batch.weights.reshape(3, 2, 2)
    np.testing.assert_array_equal(by_device[:, 0], [[0, 1], [2, 3], [4, 5]])
    np.testing.assert_array_equal(by_device[:2, 1], [[6, 7], [8, 9]])
    np.testing.assert_array_equal(by_device[2, 1], [10, 0])
    np.testing.assert_array_equal(weights[2, 1], [1, 0])
    assert batch.weights.sum() == 11


def test_the_order_is_a_pure_function_of_seed_and_epoch():
    first, second = (Batches(numbered(50), 8, shuffle_seed=seed) for seed in (0, 1))
    again = Batches(numbered(50), 20, devices=4, shuffle_seed=0)
    np.testing.assert_array_equal(first.order(5), again.order(5))
    assert list(first.order(5)) != list(first.order(6))
    assert list(first.order(5)) != list(second.order(5))
    np.testing.assert_array_equal(first.order(0), np.random.default_rng([0, 0]).permutation(50))


@pytest.mark.parametrize("first_step", [0, 1, 3, 6, 7])
def test_an_epoch_can_be_entered_at_any_step(first_step):
    batches = Batches(numbered(50), 8, devices=3, shuffle_seed=0)
    whole = list(batches.epoch(4))
    rest = list(batches.epoch(4, first_step))
    assert len(rest) == 7 - first_step
    for one, other in zip(whole[first_step:], rest, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_evaluation_keeps_the_order_of_the_data_set():
    assert visited(Batches(numbered(10), 4, devices=2), 0) == list(range(10))


def test_weights_have_the_precision_of_the_run():
    """In float32 the sums of a loss that weighs its examples would differ with the number of devices by 1e-8."""
    split = Split(np.zeros((5, 1)), np.zeros(5, np.int32))
    for wide, dtype in ((False, np.float32), (True, np.float64)):
        with jax.enable_x64(wide):
            batches = Batches(split, 3, devices=2)
        assert batches.take(np.arange(2)).weights.dtype == dtype
