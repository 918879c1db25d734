"""Solutions of lesson 03's exercises."""

import jax
import optax
from flax import nnx


def decayed(params, factor):
    """The same pytree with smaller weights and the same biases."""
    # A shape is known while tracing, so an ordinary `if` may look at it.
    return jax.tree.map(lambda array: array if array.ndim == 1 else factor * array, params)


def make_step(structure, optimizer):
    """A function (params, optimizer_state, x, y) -> (params, optimizer_state, loss)."""

    # Pure: all that changes is an argument and a result. Structure and optimizer never change, so they may be captured.
    def step(params, optimizer_state, x, y):
        def mean_squared_error(params):
            return ((nnx.merge(structure, params)(x) - y) ** 2).mean()

        loss, gradients = jax.value_and_grad(mean_squared_error)(params)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return optax.apply_updates(params, updates), optimizer_state, loss

    return step


def mended_loss(predictions, targets):
    """Mean squared error of predictions `[B, 1]` and targets `[B]`."""
    # [B, 1] - [B] broadcasts to [B, B]: every prediction is compared with every target, and the best is their mean.
    # jax.config.update("jax_numpy_rank_promotion", "raise") makes JAX refuse this.
    return ((predictions[:, 0] - targets) ** 2).mean()
