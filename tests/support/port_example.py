"""A training step before and after its port, as `pmapdp.compare` takes them.

python -m pmapdp.compare tests/support/port_example.py:old
tests/support/port_example.py:new
"""

from typing import Any

import jax
import numpy as np
import optax
from jax import P, lax
from jax.sharding import Mesh, NamedSharding

from pmapdp.verify import one_device

optimizer = optax.adam(1e-2)


def loss(params: Any, batch: Any) -> Any:
    """The mean cross-entropy of a network with one hidden layer, `[]`."""
    hidden = jax.nn.relu(batch["x"] @ params["W1"])
    return optax.softmax_cross_entropy_with_integer_labels(
        hidden @ params["W2"], batch["y"]
    ).mean()


def old_step(state: Any, batch: Any) -> tuple[Any, Any]:
    """One device's part: `batch` holds its own examples."""
    params, moments = state
    value, gradients = jax.value_and_grad(loss)(params, batch)
    value, gradients = lax.pmean((value, gradients), "batch")
    updates, moments = optimizer.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), {"loss": value}


def new_step(state: Any, batch: Any) -> tuple[Any, Any]:
    """The same on a single device: `batch` is the global batch."""
    params, moments = state
    value, gradients = jax.value_and_grad(loss)(params, batch)
    updates, moments = optimizer.update(gradients, moments, params)
    return (optax.apply_updates(params, updates), moments), {"loss": value}


def start() -> dict[str, Any]:
    """The state and a batch, as one device has them."""
    random = np.random.default_rng(0)
    params = {
        "W1": random.normal(0, 0.2, (20, 32)),
        "W2": random.normal(0, 0.2, (32, 3)),
    }
    params = jax.tree.map(lambda x: x.astype(np.float32), params)
    x = random.normal(size=(64, 20)).astype(np.float32)
    return {
        "state": (params, optimizer.init(params)),
        "batch": {"x": x, "y": x[:, :3].argmax(1)},
    }


def old() -> dict[str, Any]:
    """The old program: pmap, and a device axis on every array."""
    step = jax.pmap(old_step, axis_name="batch", donate_argnums=0)
    return start() | {
        "step": step,
        "reference": one_device(old_step, "batch"),
        "layout": "stacked",
    }


def new() -> dict[str, Any]:
    """The new program: jit with shardings, and no device axis."""
    mesh = Mesh(np.array(jax.devices()), ("batch",))
    replicated, split = NamedSharding(mesh, P()), NamedSharding(mesh, P("batch"))
    shardings: dict[str, Any] = {
        "in_shardings": (replicated, split),
        "out_shardings": replicated,
    }
    step = jax.jit(new_step, **shardings, donate_argnums=0)
    return start() | {"step": step, "reference": new_step, "layout": "sharded"}
