"""The exercises of lesson 18: wrong answers get the message that helps."""

import time

import jax
import numpy as np
import pytest

from pmapdp_lessons.checks import check

LESSON = "18_measure_a_step"
pytestmark = pytest.mark.slow


def times_the_first_call(function, x, clock):
    start = clock()
    jax.block_until_ready(function(x))
    return clock() - start


def starts_before_compiling(function, x, clock):
    start = clock()
    jax.block_until_ready(function(x))
    jax.block_until_ready(function(x))
    return clock() - start


def does_not_wait(function, x, clock):
    jax.block_until_ready(function(x))
    start = clock()
    function(x)
    return clock() - start


def does_not_wait_for_the_first(function, x, clock):
    function(x)
    start = clock()
    jax.block_until_ready(function(x))
    return clock() - start


def another_clock(function, x, clock):
    start = time.perf_counter()
    jax.block_until_ready(function(x))
    return time.perf_counter() - start


def backwards(function, x, clock):
    jax.block_until_ready(function(x))
    start = clock()
    jax.block_until_ready(function(x))
    return start - clock()


def median_of_several(function, x, clock):
    jax.block_until_ready(function(x))
    times = []
    for _ in range(5):
        start = clock()
        jax.block_until_ready(function(x))
        times.append(clock() - start)
    return np.median(times)


def one_call_each(compiled, x, size):
    return compiled(x, np.ones((len(x), 1), np.float32))


def whole_batches_only(compiled, x, size):
    total = np.zeros(3, np.float32)
    for first in range(0, len(x) - size + 1, size):
        total = total + compiled(x[first : first + size], np.ones((size, 1), np.float32))
    return total


def padding_counts(compiled, x, size):
    total = 0
    for first in range(0, len(x), size):
        rows = np.arange(first, first + size) % len(x)
        total = total + compiled(x[rows], np.ones((size, 1), np.float32))
    return total


def multiplications(function, x, seconds, rate):
    return len(x) ** 3 / seconds / rate


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("mended_timer", median_of_several),
    ],
)
def test_other_right_answers_pass(exercise, answer):
    for _ in range(5):
        verdict = check(LESSON, exercise, answer)
        assert verdict.solved, verdict.message


@pytest.mark.parametrize(
    ("exercise", "answer", "phrase"),
    [
        ("mended_timer", times_the_first_call, "also compiles"),
        ("mended_timer", starts_before_compiling, "compiling took 5 s"),
        ("mended_timer", does_not_wait, "time to dispatch"),
        ("mended_timer", does_not_wait_for_the_first, "still running"),
        ("mended_timer", another_clock, "read `clock()`"),
        ("mended_timer", backwards, "less the earlier"),
        ("all_rows", one_call_each, "give it 16 rows"),
        ("all_rows", whole_batches_only, "are missing"),
        ("all_rows", padding_counts, "the sum of 37 rows is wrong"),
        ("utilization", multiplications, "a multiplication and an addition"),
        ("utilization", lambda function, x, seconds, rate: seconds, "of the rate"),
    ],
)
def test_a_wrong_answer_gets_the_message_that_helps(exercise, answer, phrase):
    verdict = check(LESSON, exercise, answer)
    assert not verdict.solved
    assert phrase in verdict.message
