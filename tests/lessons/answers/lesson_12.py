"""Answers to the exercises of lesson 12; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import P, lax
from jax.sharding import NamedSharding


def replicate(tree, mesh, *axes):
    return jax.device_put(tree, NamedSharding(mesh, P(*axes)))


def squares(w, x, y):
    return jnp.square(x @ w - y).mean()


def mapped(gradient, value=squares, check_vma=False):
    """An answer to `ported` with `shard_map`."""

    def answer(mesh):
        def step(w, x, y):
            return w - 0.1 * gradient(w, x, y), lax.pmean(value(w, x, y), "batch")

        specs = {"in_specs": (P(), P("batch"), P("batch")), "out_specs": P()}
        return jax.jit(jax.shard_map(step, mesh=mesh, **specs, check_vma=check_vma))

    return answer


def averaged(w, x, y):
    return lax.pmean(jax.grad(squares)(w, x, y), "batch")


def loss_averaged(w, x, y):
    return jax.grad(lambda w: lax.pmean(squares(w, x, y), "batch"))(w)


def own(w, x, y):
    return jax.grad(squares)(w, x, y)


def gathered(mesh):
    def step(w, x, y):
        x, y = (lax.with_sharding_constraint(each, NamedSharding(mesh, P())) for each in (x, y))
        value, gradient = jax.value_and_grad(squares)(w, x, y)
        return w - 0.1 * gradient, value

    return jax.jit(step, out_shardings=NamedSharding(mesh, P()))


def unstacked_by_leaves(tree, mesh):
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [replicate(leaf[-1], mesh) for leaf in leaves])  # all copies are equal


def unstacked_under_jit(tree, mesh):
    one = jax.tree.map(lambda x: np.take(x, 0, axis=0), tree)
    return jax.jit(lambda tree: tree, out_shardings=NamedSharding(mesh, P()))(one)


def variance_of_squares(x):
    """E[x^2] - E[x]^2, which is exact enough for these numbers."""
    mean, square = lax.pmean((x.mean(0), jnp.square(x).mean(0)), "batch")
    return square - jnp.square(mean)


def variance_of_all_rows(x):
    return lax.all_gather(x, "batch", tiled=True).var(0)


WRONG = {
    "unstacked": [
        ("still has the shape", lambda tree, mesh: replicate(tree, mesh)),
        ("on the host", lambda tree, mesh: jax.tree.map(lambda x: x[0], tree)),
        ("still has the shape ()", lambda tree, mesh: replicate(jax.tree.map(np.sum, tree), mesh)),
    ],
    "ported": [
        ("is 4.000 times as long", mapped(averaged, check_vma=True)),
        ("own rows", mapped(own)),
        ("nobody adds up", gathered),
        ("return jax.jit", lambda mesh: squares),
    ],
    "corrected_variance": [
        ("the planted mistake", lambda x: lax.pmean(x.var(0), "batch")),
        ("different variances", lambda x: x.var(0)),
        ("yours is", lambda x: lax.psum(jnp.square(x - lax.pmean(x.mean(0), "batch")).mean(0), "batch")),
    ],
}

RIGHT = {
    "unstacked": [unstacked_by_leaves, unstacked_under_jit],
    "corrected_variance": [variance_of_squares, variance_of_all_rows],
    "ported": [mapped(averaged), mapped(loss_averaged, check_vma=True)],
}
