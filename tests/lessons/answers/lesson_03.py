"""Answers to the exercises of lesson 03; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


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


WRONG = {
    "decayed": [
        ("the bias was changed too", scale_all),
        ("also one with three", only_matrices),
        ("nested like", lambda params, factor: jax.tree.leaves(params)),
    ],
    "make_step": [
        ("return the optimizer's new state", step_with(forgets_the_state)),
        ("what is added", step_with(subtracts)),
        ("did not change", step_with(forgets_to_apply)),
        ("three things", step_with(lambda *values: values[1])),
        ("return a function", lambda structure, optimizer: (structure, optimizer)),
    ],
    "mended_loss": [
        ("still the broken loss", lambda p, t: ((p - t) ** 2).mean()),
        ("the mean over the examples", lambda p, t: ((p[:, 0] - t) ** 2).sum()),
        ("one number", lambda p, t: (p[:, 0] - t) ** 2),
    ],
}

RIGHT = {}
