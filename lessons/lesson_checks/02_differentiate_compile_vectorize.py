"""Checks of lesson 02's exercises."""

import jax
import jax.numpy as jnp
import numpy as np
from checks import require


def gradient_length(answer):
    """A function of f that returns a function of x."""
    random = np.random.default_rng()
    a, x = random.normal(size=3).astype(np.float32), random.normal(size=3).astype(np.float32)
    length = answer(lambda x: jnp.dot(a, x) + jnp.dot(x, x))
    require(
        callable(length),
        "return a function: gradient_length(f) is to be called with an x later, as jax.grad(f) is",
    )
    found, right = np.asarray(length(x)), np.linalg.norm(a + 2 * x)
    require(found.shape == (), f"the length is one number of shape (), yours has {found.shape}")
    require(not np.isclose(found, right**2, rtol=1e-4), "this is the square of the length: take the root")
    require(
        np.allclose(found, right, rtol=1e-4), f"for a gradient {a + 2 * x} the length is {right:.4f}, not {found:.4f}"
    )
    require(np.allclose(jax.jit(length)(x), right, rtol=1e-4), "the function does not work under jit: use jnp, not np")


def pairwise(answer):
    """All distances, found by vmap."""
    random = np.random.default_rng()
    m, n = 4, 5
    a, b = (random.normal(size=(rows, 3)).astype(np.float32) for rows in (m, n))
    right = np.linalg.norm(a[:, None] - b[None], axis=-1)
    found = np.asarray(answer(a, b))
    require(found.shape != (n, m), f"the axes are swapped: rows of a first, {(m, n)}")
    require(found.shape == (m, n), f"the result must have the shape {(m, n)}, yours has {found.shape}")
    require(not np.allclose(found, right**2, rtol=1e-3), "these are squared distances: take the root")
    require(np.allclose(found, right, rtol=1e-3), "entry [i, j] is the length of a[i] - b[j]")


def relu_power(answer):
    """Values and slopes, also under jit."""
    x = jnp.asarray([-2.0, -0.5, 0.5, 3.0])
    try:
        found = np.asarray(jax.jit(answer, static_argnums=1)(x, 2))
    except jax.errors.TracerBoolConversionError:
        require(False, "`if` cannot look at values under jit: compute both and choose with jnp.where")
    require(np.allclose(found[:2], 0), f"where x is negative the result is 0, yours is {found[:2]}: set it to 0 first")
    require(np.allclose(found[2:], [0.25, 9]), f"for x = 0.5 and 3 and n = 2 the result is 0.25 and 9, not {found[2:]}")
    slope = np.asarray(jax.grad(lambda x: answer(x, 1.5).sum())(x))
    require(
        not np.isnan(slope).any(),
        "the slope is nan where x is negative: the branch that is not chosen must be safe too, "
        "so choose x or 0 first, and take the power of that",
    )
    require(np.allclose(slope, [0, 0, 1.5 * 0.5**0.5, 1.5 * 3**0.5], rtol=1e-4), "the slopes are wrong")
