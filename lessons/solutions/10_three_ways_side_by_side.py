"""Solutions of lesson 10's exercises."""

import jax
import optax
from jax import P, lax


def fixed_gradient(loss, w, x):
    """The gradient of the mean loss over all devices, for any tree `w` and this device's `x` `[b, ...]`."""
    # After the cast, `grad` adds up nothing, so the `pmean` averages the devices' own gradients. Two other ways:
    # - `grad` of `lax.pmean(loss(w, x), "data")`: it adds up the gradients, and the mean inside divides each by N
    # - `grad` of this device's loss, divided by the number of devices, because the sum is already there
    # All three average the devices' means, so they need devices with equally many examples. For a ragged batch, average
    # gradients and count, as the program does.
    local = lax.pcast(w, "data", to="varying")
    return lax.pmean(jax.grad(loss)(local, x), "data")


def make_step(loss, optimizer, mesh):
    """A compiled step: (params, optimizer_state, x, y) to (params, optimizer_state, loss)."""

    def step(params, optimizer_state, x, y):
        # The check stays on, so JAX would refuse a step whose results differ from device to device.
        local = lax.pcast(params, "data", to="varying")
        # All devices have equally many examples, so a mean of their means is the mean over all.
        value, gradients = lax.pmean(jax.value_and_grad(loss)(local, x, y), "data")
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state, value

    specs = {"in_specs": (P(), P(), P("data"), P("data")), "out_specs": P()}
    return jax.jit(jax.shard_map(step, mesh=mesh, **specs))
