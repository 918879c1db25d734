"""The exercises of lesson 03: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import optax
import pytest
from flax import nnx

from pmapdp_lessons.checks import check

LESSON = "03_train_with_flax_and_optax"


def scale_all(params, factor):
    return jax.tree.map(lambda array: factor * array, params)


def only_matrices(params, factor):
    return jax.tree.map(lambda array: factor * array if array.ndim == 2 else array, params)


def step_with(finish):
    """A right step but for its end: `finish(optimizer, loss, gradients, params, optimizer_state)`."""

    def make_step(structure, optimizer):
        def step(params, optimizer_state, x, y):
            loss, gradients = jax.value_and_grad(lambda p: ((nnx.merge(structure, p)(x) - y) ** 2).mean())(params)
            return finish(optimizer, loss, gradients, params, optimizer_state)

        return step

    return make_step


def forgets_the_state(optimizer, loss, gradients, params, optimizer_state):
    updates, _ = optimizer.update(gradients, optimizer_state, params)
    return optax.apply_updates(params, updates), optimizer_state, loss


def subtracts(optimizer, loss, gradients, params, optimizer_state):
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return jax.tree.map(jnp.subtract, params, updates), optimizer_state, loss


def forgets_to_apply(optimizer, loss, gradients, params, optimizer_state):
    return params, optimizer.update(gradients, optimizer_state, params)[1], loss


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("decayed", scale_all, "the bias was changed too"),
        ("decayed", only_matrices, "also one with three"),
        ("decayed", lambda params, factor: jax.tree.leaves(params), "nested like"),
        ("make_step", step_with(forgets_the_state), "return the optimizer's new state"),
        ("make_step", step_with(subtracts), "what is added"),
        ("make_step", step_with(forgets_to_apply), "did not change"),
        ("make_step", step_with(lambda *values: values[1]), "three things"),
        ("make_step", lambda structure, optimizer: (structure, optimizer), "return a function"),
        ("mended_loss", lambda p, t: ((p - t) ** 2).mean(), "still the broken loss"),
        ("mended_loss", lambda p, t: ((p[:, 0] - t) ** 2).sum(), "the mean over the examples"),
        ("mended_loss", lambda p, t: (p[:, 0] - t) ** 2, "one number"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message
