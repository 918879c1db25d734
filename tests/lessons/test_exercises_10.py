"""The exercises of lesson 10: wrong answers get the message that helps."""

import jax
import optax
import pytest
from jax import P, lax

from pmapdp_lessons.checks import check

LESSON = "10_three_ways_side_by_side"
pytestmark = pytest.mark.slow


def varying(w):
    return jax.tree.map(lambda leaf: lax.pcast(leaf, "data", to="varying"), w)


def mean_of_varying_gradients(loss, w, x):
    return lax.pmean(jax.grad(loss)(varying(w), x), "data")


def divided_sum(loss, w, x):
    return jax.tree.map(lambda g: g / lax.axis_size("data"), jax.grad(loss)(w, x))


@pytest.mark.parametrize("answer", [mean_of_varying_gradients, divided_sum])
def test_other_right_ways_to_the_gradient_pass(answer):
    verdict = check(LESSON, "mended_gradient", answer)
    assert verdict.solved, verdict.message


def mean_of_gradient(loss, w, x):
    return lax.pmean(jax.grad(loss)(w, x), "data")


def no_mean_at_all(loss, w, x):
    return jax.grad(loss)(w, x)


def sum_of_gradient(loss, w, x):
    return lax.psum(jax.grad(loss)(w, x), "data")


def own_gradient(loss, w, x):
    return jax.grad(loss)(varying(w), x)


def loss_in_place_of_its_gradient(loss, w, x):
    return lax.pmean(loss(w, x), "data")


def sum_of_the_loss(loss, w, x):
    return jax.grad(lambda w: lax.psum(loss(w, x), "data"))(w)


def step_with(gradients, *, check_vma=False, value=lambda found: lax.pmean(found, "data")):
    """An answer to `make_step` with other gradients: a function of loss, params, x and y."""

    def answer(loss, optimizer, mesh):
        def step(params, state, x, y):
            updates, state = optimizer.update(gradients(loss, params, x, y), state, params)
            return optax.apply_updates(params, updates), state, value(loss(params, x, y))

        specs = {"in_specs": (P(), P(), P("data"), P("data")), "out_specs": P()}
        return jax.jit(jax.shard_map(step, mesh=mesh, **specs, check_vma=check_vma))

    return answer


def averaged(loss, params, x, y):
    return lax.pmean(jax.grad(loss)(params, x, y), "data")


def forgotten(loss, params, x, y):
    return jax.grad(loss)(params, x, y)


def in_jit(loss, optimizer, mesh):
    return jax.jit(lambda params, state, x, y: (params, state, loss(params, x, y)))


@pytest.mark.parametrize(
    ("exercise", "answer", "phrase"),
    [
        ("mended_gradient", mean_of_gradient, "this is the trap"),
        ("mended_gradient", no_mean_at_all, "this is the trap"),
        ("mended_gradient", sum_of_the_loss, "take the mean of the loss"),
        ("mended_gradient", sum_of_gradient, "a psum did so again"),
        ("mended_gradient", own_gradient, "different gradients"),
        ("mended_gradient", loss_in_place_of_its_gradient, "a tree like w"),
        ("make_step", step_with(averaged, check_vma=True), "this is the trap"),
        ("make_step", step_with(forgotten), "different parameters"),
        ("make_step", step_with(averaged, value=lambda found: found), "average it too"),
        ("make_step", in_jit, "does not use jax.shard_map"),
        ("make_step", lambda loss, optimizer, mesh: loss, "return jax.jit"),
    ],
)
def test_a_wrong_answer_gets_the_message_that_helps(exercise, answer, phrase):
    verdict = check(LESSON, exercise, answer)
    assert not verdict.solved
    assert phrase in verdict.message
