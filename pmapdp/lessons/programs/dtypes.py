"""Train lesson 20's network on one device, with its parameters in any dtype."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import optax

LEARNING_RATE = 3e-4  # a tenth of the program's


def train(
    loss_sums: Callable[..., Any], model: Any, batches: Iterable[Any]
) -> tuple[list[float], Any]:
    """Return the loss of each update, and the trained model.

    Adam's moments are in float32, whatever the parameters are in. So two runs differ by
    the dtypes of their model alone. The batches have no padding.
    """
    adam = optax.adam(LEARNING_RATE)
    adam_state = adam.init(jax.tree.map(lambda w: w.astype(jnp.float32), model))

    @jax.jit
    def step(model, adam_state, batch):
        B = len(batch[0])
        gradients, sums = jax.grad(loss_sums, has_aux=True)(model, batch)
        gradients = jax.tree.map(lambda g: g / B, gradients)
        updates, adam_state = adam.update(gradients, adam_state, model)
        return optax.apply_updates(model, updates), adam_state, sums["loss"] / B

    losses = []
    for batch in batches:
        model, adam_state, loss = step(model, adam_state, batch)
        losses.append(float(loss))
    return losses, model
