"""The exercises of lesson 14: wrong answers get the message that helps."""

import math
import time

import jax
import numpy as np
import pytest
from checks import check

LESSON = "14_measure_and_scale"
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


def messages_times_size(n, N):
    return 2 * (N - 1) * (n // N)


def step_by_step(example_seconds, reduce_seconds, share):
    b = 1
    while reduce_seconds > share * (b * example_seconds + reduce_seconds):
        b += 1
    return b


@pytest.mark.parametrize(
    ("exercise", "answer"),
    [
        ("seconds_per_call", median_of_several),
        ("bytes_sent", messages_times_size),
        ("least_batch", step_by_step),
    ],
)
def test_other_right_answers_pass(exercise, answer):
    for _ in range(5):
        verdict = check(LESSON, exercise, answer)
        assert verdict.solved, verdict.message


@pytest.mark.parametrize(
    ("exercise", "answer", "phrase"),
    [
        ("seconds_per_call", times_the_first_call, "also compiles"),
        ("seconds_per_call", starts_before_compiling, "compiling took 5 s"),
        ("seconds_per_call", does_not_wait, "time to dispatch"),
        ("seconds_per_call", does_not_wait_for_the_first, "still running"),
        ("seconds_per_call", another_clock, "read `clock()`"),
        ("seconds_per_call", backwards, "less the earlier"),
        ("bytes_sent", lambda n, N: 2 * n, "limit for many devices"),
        ("bytes_sent", lambda n, N: (N - 1) / N * n, "one phase"),
        ("bytes_sent", lambda n, N: 2 * (N - 1) * n, "times too much"),
        ("bytes_sent", lambda n, N: n, "2 (N - 1) messages"),
        ("least_batch", lambda e, r, s: math.floor(r * (1 - s) / (s * e)), "round up"),
        ("least_batch", lambda e, r, s: math.ceil(r / (s * e)), "plus the all-reduce"),
        ("least_batch", lambda e, r, s: r * (1 - s) / (s * e), "whole"),
        ("least_batch", lambda e, r, s: math.ceil(s * e / r), "are enough and"),
    ],
)
def test_a_wrong_answer_gets_the_message_that_helps(exercise, answer, phrase):
    verdict = check(LESSON, exercise, answer)
    assert not verdict.solved
    assert phrase in verdict.message
