"""Answers to the exercises of lesson 02; see ../test_exercises.py."""

from functools import partial

import jax
import jax.numpy as jnp


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


WRONG = {
    "clipped_mean_gradient": [
        ("no gradient was clipped", not_clipped),
        ("the gradient of each example first", partial(clipped, after=True)),
        ("only those that are longer", partial(clipped, stretch=True)),
        ("over all arrays of the pytree together", partial(clipped, each_array=True)),
        ("take the mean over the examples", without_mean),
    ],
    "mended_shift": [
        ("split it", lambda key, image: shift(key, key, image)),
        ("randint(-2, 3)", lambda key, image: shift(*jax.random.split(key), image, most=1)),
        ("longer than 2", lambda key, image: shift(*jax.random.split(key), image, most=3)),
        ("gives an image", lambda key, image: image[1:]),
    ],
    "relu_power": [
        ("where x is negative the result is 0", lambda x, n: x**n),
        ("jnp.where", branch),
        ("the branch that is not chosen", lambda x, n: jnp.where(x > 0, x**n, 0)),
    ],
}

RIGHT = {}
