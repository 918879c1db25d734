"""The exercises of lesson 19: wrong answers get the message that helps."""

import math

import pytest
from jax import lax

from pmapdp_lessons.checks import check

LESSON = "19_predict_a_thousand_devices"
pytestmark = pytest.mark.slow


def messages_times_size(n, N):
    return 2 * (N - 1) * (n // N)


def step_by_step(example_seconds, reduce_seconds, share):
    b = 1
    while reduce_seconds > share * (b * example_seconds + reduce_seconds):
        b += 1
    return b


def not_by_a_ring(x):
    return lax.psum_scatter(x, "data", tiled=True)


def whole_arrays(x):
    total, sent = x, x
    for _ in range(3):
        sent = lax.ppermute(sent, "data", [(d, (d + 1) % 4) for d in range(4)])
        total = total + sent
    return lax.dynamic_slice_in_dim(total, 2 * lax.axis_index("data"), 2)


@pytest.mark.parametrize(("exercise", "answer"), [("bytes_sent", messages_times_size), ("mended_batch", step_by_step)])
def test_other_right_answers_pass(exercise, answer):
    for _ in range(5):
        verdict = check(LESSON, exercise, answer)
        assert verdict.solved, verdict.message


@pytest.mark.parametrize(
    ("exercise", "answer", "phrase"),
    [
        ("ring_sum", not_by_a_ring, "use lax.ppermute alone"),
        ("ring_sum", whole_arrays, "three messages of a quarter"),
        ("ring_sum", lambda x: x[:2], "are not those of the sum"),
        ("ring_sum", lambda x: x, "a device returns its quarter"),
        ("bytes_sent", lambda n, N: 2 * n, "limit for many devices"),
        ("bytes_sent", lambda n, N: (N - 1) / N * n, "one phase"),
        ("bytes_sent", lambda n, N: 2 * (N - 1) * n, "times too much"),
        ("bytes_sent", lambda n, N: n, "2 (N - 1) messages"),
        ("mended_batch", lambda e, r, s: math.floor(r * (1 - s) / (s * e)), "round up"),
        ("mended_batch", lambda e, r, s: math.ceil(r / (s * e)), "plus the all-reduce"),
        ("mended_batch", lambda e, r, s: r * (1 - s) / (s * e), "whole"),
        ("mended_batch", lambda e, r, s: math.ceil(s * e / r), "are enough and"),
    ],
)
def test_a_wrong_answer_gets_the_message_that_helps(exercise, answer, phrase):
    verdict = check(LESSON, exercise, answer)
    assert not verdict.solved
    assert phrase in verdict.message
