"""Answers to the exercises of lesson 03; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx


def scale_all(params, factor):
    return jax.tree.map(lambda array: factor * array, params)


def only_matrices(params, factor):
    return jax.tree.map(lambda array: factor * array if array.ndim == 2 else array, params)


def step_with(finish):
    """A right step but for its end: `finish(optimizer, loss, gradients, model, optimizer_state)`."""

    def make_step(optimizer):
        def step(model, optimizer_state, x, y):
            loss, gradients = jax.value_and_grad(lambda model: ((model(x) - y) ** 2).mean())(model)
            return finish(optimizer, loss, gradients, model, optimizer_state)

        return step

    return make_step


def forgets_the_state(optimizer, loss, gradients, model, optimizer_state):
    updates, _ = optimizer.update(gradients, optimizer_state, model)
    return optax.apply_updates(model, updates), optimizer_state, loss


def subtracts(optimizer, loss, gradients, model, optimizer_state):
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, model)
    return jax.tree.map(jnp.subtract, model, updates), optimizer_state, loss


def forgets_to_apply(optimizer, loss, gradients, model, optimizer_state):
    return model, optimizer.update(gradients, optimizer_state, model)[1], loss


def decayed_by_path(params, factor):
    def one(path, array):
        return array if "bias" in jax.tree_util.keystr(path) else array * factor

    return jax.tree_util.tree_map_with_path(one, params)


def decayed_by_leaves(params, factor):
    leaves, structure = jax.tree.flatten(params)
    return jax.tree.unflatten(structure, [leaf * (factor if np.ndim(leaf) > 1 else 1) for leaf in leaves])


def step_by_split_and_merge(optimizer):
    def step(model, optimizer_state, x, y):
        structure, params = nnx.split(model)

        def loss_of(params):
            return jnp.square(nnx.merge(structure, params)(x) - y).mean()

        loss, gradients = jax.value_and_grad(loss_of)(params)
        model_gradients = nnx.merge(structure, gradients)
        updates, optimizer_state = optimizer.update(model_gradients, optimizer_state, model)
        return optax.apply_updates(model, updates), optimizer_state, loss

    return step


def compiled_step(optimizer):
    @jax.jit
    def step(model, optimizer_state, x, y):
        def loss_of(model):
            return optax.squared_error(model(x), y).mean()

        gradients = jax.grad(loss_of)(model)
        updates, new_state = optimizer.update(gradients, optimizer_state, model)
        return [jax.tree.map(jnp.add, model, updates), new_state, loss_of(model)]

    return step


def loss_by_columns(predictions, targets):
    return ((predictions - targets[:, None]) ** 2).mean()


def loss_by_dot(predictions, targets):
    difference = jnp.squeeze(predictions, 1) - targets
    return difference @ difference / len(targets)


WRONG = {
    "decayed": [
        ("the bias was changed too", scale_all),
        ("also one with three", only_matrices),
        ("nested like", lambda model, factor: jax.tree.leaves(model)),
    ],
    "make_step": [
        ("return the optimizer's new state", step_with(forgets_the_state)),
        ("what is added", step_with(subtracts)),
        ("did not change", step_with(forgets_to_apply)),
        ("three things", step_with(lambda *values: values[1])),
        ("return a function", lambda optimizer: (optimizer, optimizer)),
    ],
    "fixed_loss": [
        ("still the broken loss", lambda p, t: ((p - t) ** 2).mean()),
        ("the mean over the examples", lambda p, t: ((p[:, 0] - t) ** 2).sum()),
        ("one number", lambda p, t: (p[:, 0] - t) ** 2),
    ],
}

RIGHT = {
    "decayed": [decayed_by_path, decayed_by_leaves],
    "make_step": [step_by_split_and_merge, compiled_step],
    "fixed_loss": [loss_by_columns, loss_by_dot],
}
