"""Solutions of lesson 13's exercises."""

import jax
import jax.numpy as jnp
from jax import lax


def global_gradient(loss, w, x, K):
    """Sums stay on the device until the last micro-batch is done; one pmean serves all."""

    def add(total, rows):
        return total + jax.grad(loss)(w, rows), None

    total, _ = lax.scan(add, jnp.zeros_like(w), x.reshape(K, -1, x.shape[1]))
    return lax.pmean(total / K, "data")


def cut_rows(x, K):
    """A device has neighbouring rows. Each row goes to the micro-batch of its number modulo K, so each micro-batch has
    rows of every device."""
    return x.reshape(-1, K, x.shape[1]).swapaxes(0, 1)


def fixed_gradient(w, x, y, weights):
    """A mean of means weighs a micro-batch with much padding as much as a full one. Sums can be added."""

    def total(w, x, y, weights):
        return jnp.sum(weights * (x @ w - y) ** 2)

    gradients = sum(jax.grad(total)(w, *rows) for rows in zip(x, y, weights, strict=True))
    return gradients / jnp.sum(weights)
