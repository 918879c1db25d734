"""Answers to the exercises of lesson 16; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def step(shard=lambda g: lax.psum_scatter(g, "data", tiled=True) / 4, index=lambda: lax.axis_index("data")):
    def answer(w, g, m):
        m = 0.9 * m + shard(g)
        mine = lax.dynamic_slice_in_dim(w, index() * m.size, m.size) - 0.1 * m
        return lax.all_gather(mine, "data", tiled=True), m

    return answer


def slice_of(g):
    return lax.dynamic_slice_in_dim(g, lax.axis_index("data") * 2, 2)


def whole_momentum(w, g, m):
    m = 0.9 * lax.all_gather(m, "data", tiled=True) + lax.pmean(g, "data")
    return w - 0.1 * m, m


def from_a_callback(build, sharding):
    return jax.make_array_from_callback((8, 6), sharding, lambda index: np.asarray(build())[index])


def by_a_constraint(build, sharding):
    return jax.jit(lambda: lax.with_sharding_constraint(build(), sharding))()


def compiled_ahead(build, sharding):
    return jax.jit(build, out_shardings=sharding).lower().compile()()


def by_all_to_all(g):
    return lax.all_to_all(g.reshape(4, 2), "data", 0, 0).sum(0) / 4


def clipped_by_where(g):
    squares = lax.all_gather(jnp.square(g).sum(), "data").sum()
    return jnp.where(squares > 1, g * lax.rsqrt(squares), g)


WRONG = {
    "born_in_place": [
        ("outside of jit", lambda build, sharding: jax.device_put(build(), sharding)),
        ("not the one that was asked for", lambda build, sharding: jax.jit(build)()),
        ("outside of jit", lambda build, sharding: jax.device_put(jnp.copy(build()), sharding)),
        ("outside of jit", from_a_callback),
    ],
    "zero_step": [
        ("divide by N", step(lambda g: lax.psum_scatter(g, "data", tiled=True))),
        ("only this device's gradient", step(slice_of)),
        ("use axis_index", step(index=lambda: 0)),
        ("half of an all-reduce", step(lambda g: slice_of(lax.pmean(g, "data")))),
        ("m stays this device's shard", whole_momentum),
    ],
    "fixed_clip": [
        ("add the squares of all devices", lambda g: g / jnp.maximum(1, jnp.linalg.norm(g))),
        ("add the squares", lambda g: g / jnp.maximum(1, lax.psum(jnp.linalg.norm(g), "data"))),
        ("must get the length 0.500", lambda g: g / jnp.sqrt(lax.psum(jnp.square(g).sum(), "data"))),
    ],
}

RIGHT = {
    "born_in_place": [by_a_constraint, compiled_ahead],
    "zero_step": [
        step(lambda g: lax.psum_scatter(g / 4, "data", tiled=True)),
        step(by_all_to_all),
    ],
    "fixed_clip": [
        clipped_by_where,
        lambda g: g * jnp.minimum(1, lax.rsqrt(lax.psum(jnp.vdot(g, g), "data"))),
    ],
}
