"""A wrong training step, which raises no error.

    $ python -m pmapdp.verify examples/sum_of_means.py:check
    FAILED       same update (8 devices): 1 of 1 leaves differ, from update 1 on; ...
    ...
    This fits 'sum for mean' of the usual mistakes. ...

The devices' gradients are added up with `lax.psum`, but each is already a mean over the
device's examples. So on N devices the update is N times too long. The correct function
is `lax.pmean`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pmapdp.verify import one_device


def loss(weights, batch):
    """Mean squared error of a linear model, on `[b, D]` inputs and `[b]` targets."""
    return jnp.square(batch["x"] @ weights - batch["y"]).mean()


def step(weights, batch):
    """One device's part of the step."""
    value, gradient = jax.value_and_grad(loss)(weights, batch)
    gradient = lax.psum(gradient, "devices")  # the mistake
    return weights - 0.01 * gradient, {"loss": lax.pmean(value, "devices")}


def check():
    """The arguments of `pmapdp.verify.verify`."""
    random = np.random.default_rng(0)
    return {
        "step": jax.pmap(step, "devices"),
        "reference": one_device(step, "devices"),
        "state": np.zeros(5, np.float32),
        "batch": {
            "x": random.normal(size=(64, 5)).astype(np.float32),
            "y": np.ones(64, np.float32),
        },
    }
