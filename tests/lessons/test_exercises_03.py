"""The exercises of lesson 03: wrong answers get the message that helps."""

import jax
import pytest
from checks import check

LESSON = "03_train_with_flax_and_optax"


def in_place(parameter, velocity, gradient, rate):
    velocity *= 0.9
    velocity += gradient
    return parameter - rate * velocity, velocity


def scale_all(params, factor):
    return jax.tree.map(lambda array: factor * array, params)


def only_matrices(params, factor):
    return jax.tree.map(lambda array: factor * array if array.ndim == 2 else array, params)


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("momentum_step", in_place, "changed in place"),
        ("momentum_step", lambda p, v, g, r: (p - r * v, 0.9 * v + g), "go against the velocity"),
        ("momentum_step", lambda p, v, g, r: (p - r * g, 0.9 * v + g), "use the new velocity"),
        ("warmup", lambda peak, steps: peak / steps, "return a function"),
        ("warmup", lambda peak, steps: lambda step: peak * step / steps, "the rate stays"),
        ("warmup", lambda peak, steps: lambda step: peak * min(step / steps, 1), "jnp.minimum"),
        ("decayed", scale_all, "the bias was changed too"),
        ("decayed", only_matrices, "also one with three"),
        ("decayed", lambda params, factor: jax.tree.leaves(params), "nested like"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message
