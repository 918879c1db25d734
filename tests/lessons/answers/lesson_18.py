"""Answers to the exercises of lesson 18; see ../test_exercises.py."""

import time

import jax
import numpy as np


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


WRONG = {
    "mended_timer": [
        ("also compiles", times_the_first_call),
        ("compiling took 5 s", starts_before_compiling),
        ("time to dispatch", does_not_wait),
        ("still running", does_not_wait_for_the_first),
        ("read `clock()`", another_clock),
        ("less the earlier", backwards),
    ],
    "all_rows": [
        ("give it 16 rows", one_call_each),
        ("are missing", whole_batches_only),
        ("the sum of 37 rows is wrong", padding_counts),
    ],
    "utilization": [
        ("a multiplication and an addition", multiplications),
        ("of the rate", lambda function, x, seconds, rate: seconds),
    ],
}

RIGHT = {
    "mended_timer": [median_of_several],
}
