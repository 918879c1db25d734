"""Solutions of lesson 10's exercises."""

import jax
import optax
from jax import P, lax


def fixed_gradient(loss, w, x):
    """The gradient of the mean loss over all devices, for any tree `w` and this device's `x` `[b, ...]`."""
    # `grad` adds up the gradients of all devices, and the mean inside of it divides each of them by N. Two other ways:
    # - `w = lax.pcast(w, "data", to="varying")` before the line of `broken_gradient`, so that `grad` adds up nothing
    # - `grad` of this device's loss, divided by the number of devices, because the sum is already there
    # All three average the devices' means, so they need devices with equally many examples. For a ragged batch, average
    # gradients and count, as the program does.
    return jax.grad(lambda w: lax.pmean(loss(w, x), "data"))(w)


def make_step(loss, optimizer, mesh):
    """A compiled step: (params, optimizer_state, x, y) to (params, optimizer_state, loss)."""

    def step(params, optimizer_state, x, y):
        # The check stays on, so JAX would refuse a step whose results differ from device to device.
        # All devices have equally many examples, so a mean of their means is the mean over all.
        def mean_loss(params):
            return lax.pmean(loss(params, x, y), "data")

        value, gradients = jax.value_and_grad(mean_loss)(params)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state, value

    specs = {"in_specs": (P(), P(), P("data"), P("data")), "out_specs": P()}
    return jax.jit(jax.shard_map(step, mesh=mesh, **specs))
