"""Solutions of lesson 10's exercises."""

import jax
import optax
from jax import P, lax


def gradient(loss, w, x):
    """The mean is taken inside of `grad`, so the sum that `grad` inserts is of gradients that are divided by N already.
    The other way: `w = lax.pcast(w, "data", to="varying")`, and then the planted line."""
    return jax.grad(lambda w: lax.pmean(loss(w, x), "data"))(w)


def make_step(loss, optimizer, mesh):
    """pmap's program on jit's arrays. With `check_vma=True` the gradient would be N times too large."""

    def step(params, optimizer_state, x, y):
        value, gradients = lax.pmean(jax.value_and_grad(loss)(params, x, y), "data")
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state, value

    specs = {"in_specs": (P(), P(), P("data"), P("data")), "out_specs": P()}
    return jax.jit(jax.shard_map(step, mesh=mesh, **specs, check_vma=False))


def length_ratio(gradients, reference):
    """A length shows a wrong factor; a direction, or Adam's update, does not."""
    return optax.tree.norm(gradients) / optax.tree.norm(reference)
