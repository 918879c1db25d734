"""The gradient noise scale from all examples, one by one: lesson 18 checks its estimate with it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax


@partial(jax.jit, static_argnums=0)
def measure_directly(
    loss_sums: Callable[..., Any], model: Any, inputs: jax.Array, labels: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Measure S and |G|^2 with the gradients of all n examples.

    Args:
        loss_sums: as in the program of the lessons, `loss_sums(model, batch)`.
        inputs: `[n, D]`.
        labels: `[n]`.

    Returns:
        S, the variance of an example's gradient, added up over the parameters, and the
        squared length of its expectation. The mean of n gradients has a squared length
        that is larger by S / n on average, which is taken off.
    """
    n = len(inputs)
    batches = inputs[:, None], labels[:, None], np.ones((n, 1), np.float32)
    gradient = jax.grad(loss_sums, has_aux=True)
    gradients, _ = jax.vmap(gradient, in_axes=(None, 0))(model, batches)
    S = sum(leaf.var(axis=0, ddof=1).sum() for leaf in jax.tree.leaves(gradients))
    mean = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), gradients)
    return S, optax.tree.norm(mean, squared=True) - S / n
