"""Answers to the exercises of lesson 02; see ../test_exercises.py."""

from functools import partial

import jax
import jax.numpy as jnp
import optax


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


def power_by_logarithm(x, n):
    safe = jnp.where(x > 0, x, 1)
    return jnp.where(x > 0, jnp.exp(n * jnp.log(safe)), 0)


def power_by_relu(x, n):
    return jax.nn.relu(x) ** n


def clipped_in_a_loop(loss_one, parameters, x, labels, limit):
    total = jax.tree.map(jnp.zeros_like, parameters)
    for image, label in zip(x, labels, strict=True):
        gradient = jax.grad(loss_one)(parameters, image, label)
        length = jnp.linalg.norm(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(gradient)]))
        total = jax.tree.map(lambda t, g, length=length: t + g * jnp.minimum(1, limit / length), total, gradient)
    return jax.tree.map(lambda leaf: leaf / len(x), total)


def clipped_by_optax(loss_one, parameters, x, labels, limit):
    gradients = jax.vmap(jax.grad(loss_one), in_axes=(None, 0, 0))(parameters, x, labels)
    clip = optax.clip_by_global_norm(limit)
    clipped_gradients = jax.vmap(lambda gradient: clip.update(gradient, clip.init(gradient))[0])(gradients)
    return jax.tree.map(lambda leaf: leaf.mean(0), clipped_gradients)


def shift_by_one_draw(key, image):
    down, right = jax.random.randint(key, (2,), -2, 3)
    return jnp.roll(image, (down, right), axis=(0, 1))


def shift_one_after_the_other(key, image):
    down = jax.random.randint(jax.random.fold_in(key, 1), (), -2, 3)
    right = jax.random.randint(jax.random.fold_in(key, 2), (), -2, 3)
    return jnp.roll(jnp.roll(image, down, axis=0), right, axis=1)


WRONG = {
    "clipped_mean_gradient": [
        ("no gradient was clipped", not_clipped),
        ("the gradient of each example first", partial(clipped, after=True)),
        ("only those that are longer", partial(clipped, stretch=True)),
        ("over all arrays of the pytree together", partial(clipped, each_array=True)),
        ("take the mean over the examples", without_mean),
    ],
    "fixed_shift": [
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

RIGHT = {
    "relu_power": [power_by_logarithm, power_by_relu],
    "clipped_mean_gradient": [clipped_in_a_loop, clipped_by_optax],
    "fixed_shift": [shift_by_one_draw, shift_one_after_the_other],
}
