"""Answers to the exercises of lesson 18; see ../test_exercises.py."""

import math
import time

import jax
import numpy as np
from jax import lax


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


def mean_of_a_group(function, x, clock):
    for _ in range(2):
        result = function(x)
        result.block_until_ready()
    times = [clock()]
    for _ in range(3):
        function(x).block_until_ready()
        times.append(clock())
    return (times[-1] - times[0]) / (len(times) - 1)


def compiled_flops(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]


def scan_as_it_is(layer, x, weights):
    return compiled_flops(lambda x, weights: lax.scan(layer, x, weights)[0], x, weights)


def one_layer_times_rounds(layer, x, weights):
    return compiled_flops(lambda x, w: layer(x, w)[0], x, weights[0]) * len(weights)


def in_a_python_loop(layer, x, weights):
    def forward(x, weights):
        for w in weights:
            x, _ = layer(x, w)
        return x

    return compiled_flops(forward, x, weights)


def ring(n, N, latency, bandwidth):
    return 2 * (N - 1) * (latency + n / (N * bandwidth))


def counts_up(n, N, latency, bandwidth, seconds):
    b = 1
    while b * seconds * 2 / 3 < ring(n, N, latency, bandwidth):
        b += 1
    return b


WRONG = {
    "fixed_timer": [
        ("also compiles", times_the_first_call),
        ("compiling took 5 s", starts_before_compiling),
        ("time to dispatch", does_not_wait),
        ("still running", does_not_wait_for_the_first),
        ("read `clock()`", another_clock),
        ("less the earlier", backwards),
    ],
    "scan_flops": [
        ("counted once", scan_as_it_is),
        (
            "a multiplication and an addition",
            lambda layer, x, weights: x.size * weights[0].size * len(weights) / len(x[0]),
        ),
        ("yours is", lambda layer, x, weights: 3 * one_layer_times_rounds(layer, x, weights)),
    ],
    "least_examples": [
        ("round up", lambda n, N, L, W, seconds: int(ring(n, N, L, W) / (2 / 3 * seconds))),
        ("only the backward pass", lambda n, N, L, W, seconds: math.ceil(ring(n, N, L, W) / seconds)),
        ("a reduce-scatter alone", lambda n, N, L, W, seconds: math.ceil(ring(n, N, L, W) / 2 / (2 / 3 * seconds))),
        ("are enough", lambda n, N, L, W, seconds: math.ceil(2 * (N - 1) * n / W / (2 / 3 * seconds))),
        ("examples are whole", lambda n, N, L, W, seconds: ring(n, N, L, W) / (2 / 3 * seconds)),
    ],
}

RIGHT = {
    "fixed_timer": [median_of_several, mean_of_a_group],
    "scan_flops": [one_layer_times_rounds, in_a_python_loop],
    "least_examples": [counts_up, lambda *given: max(1, -int(-ring(*given[:4]) * 3 // (2 * given[4])))],
}
