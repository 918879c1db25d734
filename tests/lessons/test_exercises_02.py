"""The exercises of lesson 02: wrong answers get the message that helps."""

from functools import partial

import jax
import jax.numpy as jnp
import pytest

from pmapdp_lessons.checks import check

LESSON = "02_differentiate_compile_vectorize"


def clipped(loss_one, parameters, x, labels, limit, *, after=False, stretch=False, each_array=False):
    def shorten(gradient):
        leaves = jax.tree.leaves(gradient)
        length = jnp.sqrt(sum((leaf**2).sum() for leaf in leaves))

        def factor(leaf):
            ratio = (jnp.linalg.norm(leaf) if each_array else length) / limit
            return ratio if stretch else jnp.maximum(ratio, 1)

        return jax.tree.map(lambda leaf: leaf / factor(leaf), gradient)

    gradients = jax.vmap(jax.grad(loss_one), in_axes=(None, 0, 0))(parameters, x, labels)
    mean = partial(jax.tree.map, lambda leaf: leaf.mean(0))
    return shorten(mean(gradients)) if after else mean(jax.vmap(shorten)(gradients))


def not_clipped(loss_one, parameters, x, labels, limit):
    return clipped(loss_one, parameters, x, labels, 1e9)


def without_mean(loss_one, parameters, x, labels, limit):
    return jax.vmap(jax.grad(loss_one), in_axes=(None, 0, 0))(parameters, x, labels)


def shift(down_key, right_key, image, most=2):
    down, right = (jax.random.randint(key, (), -most, most + 1) for key in (down_key, right_key))
    return jnp.roll(image, (down, right), axis=(0, 1))


def branch(x, n):
    return x**n if x[0] > 0 else jnp.zeros_like(x)


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("clipped_mean_gradient", not_clipped, "no gradient was clipped"),
        ("clipped_mean_gradient", partial(clipped, after=True), "the gradient of each example first"),
        ("clipped_mean_gradient", partial(clipped, stretch=True), "only those that are longer"),
        ("clipped_mean_gradient", partial(clipped, each_array=True), "over all arrays of the pytree together"),
        ("clipped_mean_gradient", without_mean, "take the mean over the examples"),
        ("mended_shift", lambda key, image: shift(key, key, image), "split it"),
        ("mended_shift", lambda key, image: shift(*jax.random.split(key), image, most=1), "randint(-2, 3)"),
        ("mended_shift", lambda key, image: shift(*jax.random.split(key), image, most=3), "longer than 2"),
        ("mended_shift", lambda key, image: image[1:], "gives an image"),
        ("relu_power", lambda x, n: x**n, "where x is negative the result is 0"),
        ("relu_power", branch, "jnp.where"),
        ("relu_power", lambda x, n: jnp.where(x > 0, x**n, 0), "the branch that is not chosen"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message
