"""The exercises of lesson 06: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from pmapdp_lessons.checks import check

LESSON = "06_communicate_between_devices"


def multiplies_by_zero(x):
    return lax.psum(x * (lax.axis_index("data") == 0), "data")


def around_the_ring(x):
    N, total, travelling = lax.axis_size("data"), x, x
    for _ in range(N - 1):
        travelling = lax.ppermute(travelling, "data", [(d, (d + 1) % N) for d in range(N)])
        total = total + travelling
    return total


def one_round(x):
    return x + lax.ppermute(x, "data", [(d, d ^ 1) for d in range(lax.axis_size("data"))])


def softmax_with(largest):
    def softmax(logits):
        exponentials = jnp.exp(logits - largest(logits))
        return exponentials / lax.psum(exponentials.sum(), "data")

    return softmax


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("broadcast", lambda x: lax.psum(x, "data"), "the others must add 0"),
        ("broadcast", lambda x: x, "its own x"),
        ("broadcast", multiplies_by_zero, "0 times NaN is NaN"),
        ("butterfly_sum", lambda x: lax.psum(x, "data"), "no lax.psum"),
        ("butterfly_sum", lambda x: lax.all_gather(x, "data").sum(0), "no lax.all_gather"),
        ("butterfly_sum", around_the_ring, "4 devices need 2 rounds of ppermute, yours has 3"),
        ("butterfly_sum", one_round, "do not hold the sum of all"),
        ("mended_softmax", softmax_with(jnp.max), "subtract the same number"),
        ("mended_softmax", softmax_with(lambda logits: 0), "exp overflows"),
        ("mended_softmax", jax.nn.softmax, "by themselves"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message
