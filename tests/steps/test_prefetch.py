"""Batches are placed ahead of the loop.

In order, their errors in the loop, and no thread is left.
"""

import itertools
import threading

import jax
import numpy as np
import pytest

from pmapdp.steps.placing import prefetch


def numbers(made, last=20, error_at=None):
    for number in range(last):
        if number == error_at:
            raise OSError("the disk is gone")
        made.append(number)
        yield number


@pytest.fixture(autouse=True)
def no_thread_is_left():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("taken", [0, 1, 7, 20])
def test_two_ahead_in_order_and_never_more(taken):
    made = []
    seen = []
    with prefetch(numbers(made), lambda number: -number) as placed:
        for batch in itertools.islice(placed, taken):
            seen.append(batch)
            assert len(made) <= len(seen) + 2
    assert seen == [-number for number in range(taken)]


def test_an_error_of_reading_or_placing_reaches_the_loop_after_the_batches_before_it():
    def refuse(number):
        if number == 5:
            raise ValueError("no memory")
        return number

    for source, place, error in (
        (numbers([], error_at=5), abs, OSError),
        (numbers([]), refuse, ValueError),
    ):
        with prefetch(source, place) as placed:
            assert [next(placed) for _ in range(5)] == [0, 1, 2, 3, 4]
            with pytest.raises(error):
                next(placed)


def stop(placed):
    for batch in placed:
        1 / batch


def test_a_loop_that_fails_ends_the_thread():
    with pytest.raises(ZeroDivisionError), prefetch(numbers([]), abs) as placed:
        stop(placed)


def test_64_bits_hold_in_the_thread_too():
    with jax.enable_x64(True), prefetch([np.arange(3.0)], jax.device_put) as placed:
        assert [batch.dtype for batch in placed] == [np.float64]
