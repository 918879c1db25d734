"""Solutions of lesson 12's exercises."""

import jax
import jax.numpy as jnp
from jax import lax


def born_in_place(build, sharding):
    """The array build() makes, in parts."""
    return jax.jit(build, out_shardings=sharding)()


def update_in_parts(w, g):
    """[D / N]."""
    part = lax.psum_scatter(g, "data", tiled=True)
    return lax.dynamic_slice_in_dim(w, lax.axis_index("data") * part.size, part.size) - 0.1 * part


def whole_norm(g):
    """[], equal on all devices."""
    return jnp.sqrt(lax.psum(jnp.square(g).sum(), "data"))
