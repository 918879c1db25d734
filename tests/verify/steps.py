"""Steps of a few lines that tests change in one place."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from pmapdp.devices import simulate
from pmapdp.verify import one_device

simulate(8)  # before a table of tests uses JAX
RANDOM = np.random.default_rng(0)
BATCH = {
    "x": RANDOM.normal(size=(16, 5)).astype(np.float32),
    "y": RANDOM.normal(size=16).astype(np.float32),
}
W = RANDOM.normal(size=5).astype(np.float32)
MESH = Mesh(np.array(jax.devices()), ("i",))


def mean(tree):
    return lax.pmean(tree, "i")


def total(tree):
    return lax.psum(tree, "i")


def alone(tree):
    return tree


def loss_of(w, batch, keep=1.0):
    return jnp.mean(keep * (batch["x"] @ w - batch["y"]) ** 2)


def descend(w, batch, average=alone):
    """Linear regression: the new weights, and the loss."""
    loss, gradient = jax.value_and_grad(loss_of)(w, batch)
    return w - 0.1 * average(gradient), {"loss": average(loss)}


def sharded(step, **more):
    return jax.jit(
        jax.shard_map(step, mesh=MESH, in_specs=(P(), P("i")), out_specs=P(), **more)
    )


def on_pmap(step, **changes):
    """The step on all devices, averaging over them."""
    changes = {"average": mean} | changes
    return jax.pmap(lambda *given: step(*given, **changes), "i")


def given(step, state, batch=BATCH, **more):
    """A pmapped step over the axis "i", with itself on one device as the reference."""
    more.setdefault("reference", one_device(step, "i"))
    return {"step": jax.pmap(step, "i"), "state": state, "batch": batch, **more}
