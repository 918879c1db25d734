"""The exercises of lesson 02: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import check

LESSON = "02_differentiate_compile_vectorize"


def distances_of_b_to_a(a, b):
    return np.linalg.norm(a[None] - b[:, None], axis=-1)


def branch(x, n):
    return x**n if x[0] > 0 else jnp.zeros_like(x)


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("gradient_length", lambda f: jnp.linalg.norm(jax.grad(f)(jnp.ones(3))), "return a function"),
        ("gradient_length", lambda f: lambda x: (jax.grad(f)(x) ** 2).sum(), "take the root"),
        ("gradient_length", lambda f: lambda x: jnp.abs(jax.grad(f)(x)), "one number"),
        ("pairwise", distances_of_b_to_a, "the axes are swapped"),
        ("pairwise", lambda a, b: np.linalg.norm(a - b[: len(a)], axis=-1), "the result must have the shape"),
        ("pairwise", lambda a, b: ((a[:, None] - b[None]) ** 2).sum(-1), "squared distances"),
        ("relu_power", lambda x, n: x**n, "where x is negative the result is 0"),
        ("relu_power", branch, "jnp.where"),
        ("relu_power", lambda x, n: jnp.where(x > 0, x**n, 0), "the branch that is not chosen"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message
