"""The exercises of lesson 11: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import pytest
from jax import P

from pmapdp_lessons.checks import check

LESSON = "11_explicit_sharding"
pytestmark = pytest.mark.slow


def without_assert(w, x, y):
    z = (x - x.mean(0)) / x.std(0)
    return w - 0.1 * jax.grad(lambda w: jnp.square(z @ w - y).mean())(w)


def not_normalized(w, x, y):
    assert jax.typeof(x).sharding.spec[0] == "data"
    return w - 0.1 * jax.grad(lambda w: jnp.square(x @ w - y).mean())(w)


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("typed", lambda function, x: jax.typeof(function(x)).sharding.spec, "trace it only"),
        ("typed", lambda function, x: x.sharding.spec, "the spec of x.T"),
        ("typed", lambda function, x: jax.eval_shape(function, x), "return a PartitionSpec"),
        ("mended_gram", lambda x: x.T @ x, "your code raised ShardingTypeError"),
        ("mended_gram", lambda x: jnp.matmul(jax.reshard(x, P()).T, jax.reshard(x, P())) + 1, "not those of x.T @ x"),
        ("normalized_step", without_assert, "a batch that is not split was accepted"),
        ("normalized_step", not_normalized, "yours is"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message
