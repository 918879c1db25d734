"""Answers to the exercises of lesson 10; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
import optax
from jax import P, lax


def varying(w):
    return jax.tree.map(lambda leaf: lax.pcast(leaf, "data", to="varying"), w)


def mean_of_varying_gradients(loss, w, x):
    return lax.pmean(jax.grad(loss)(varying(w), x), "data")


def divided_sum(loss, w, x):
    return jax.tree.map(lambda g: g / lax.axis_size("data"), jax.grad(loss)(w, x))


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


def mean_of_the_loss(loss, params, x, y):
    return jax.grad(lambda params: lax.pmean(loss(params, x, y), "data"))(params)


def cast_first(loss, optimizer, mesh):
    """With the check on; the decorator's form, and arrays that are placed inside the compiled function."""

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(P(), P(), P("data"), P("data")), out_specs=P())
    def step(params, state, x, y):
        found = jax.value_and_grad(loss)(varying(params), x, y)
        value, gradients = jax.tree.map(lambda leaf: lax.psum(leaf, "data") / lax.axis_size("data"), found)
        updates, state = optimizer.update(gradients, state, params)
        return jax.tree.map(jnp.add, params, updates), state, value

    return step


WRONG = {
    "fixed_gradient": [
        ("this is the trap", mean_of_gradient),
        ("this is the trap", no_mean_at_all),
        ("take the mean of the loss", sum_of_the_loss),
        ("a psum did so again", sum_of_gradient),
        ("different gradients", own_gradient),
        ("a tree like w", loss_in_place_of_its_gradient),
    ],
    "make_step": [
        ("this is the trap", step_with(averaged, check_vma=True)),
        ("different parameters", step_with(forgotten)),
        ("average it too", step_with(averaged, value=lambda found: found)),
        ("does not use jax.shard_map", in_jit),
        ("return jax.jit", lambda loss, optimizer, mesh: loss),
    ],
}

RIGHT = {
    "fixed_gradient": [mean_of_varying_gradients, divided_sum],
    "make_step": [step_with(mean_of_the_loss, check_vma=True), cast_first],
}
