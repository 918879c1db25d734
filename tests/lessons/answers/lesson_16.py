BORN = "jax.jit(build, out_shardings=sharding)()"
SHARD = 'lax.psum_scatter(g, "data", tiled=True) / lax.axis_size("data")'
SLICE = 'lax.dynamic_slice_in_dim({}, lax.axis_index("data") * m.size, m.size)'
MOMENTUM = "m = 0.9 * m + gradient"
WHOLE_MOMENTUM = """m = 0.9 * lax.all_gather(m, "data", tiled=True) + lax.pmean(g, "data")
    return w - 0.1 * m, m"""
LENGTH = 'jnp.sqrt(lax.psum(jnp.square(g).sum(), "data"))'
CLIPPED = "g / jnp.maximum(1, length)"

WRONG = {
    "build_sharded": [
        ("outside of jit", BORN, "jax.device_put(build(), sharding)"),
        ("not the one that was asked for", "build, out_shardings=sharding", "build"),
    ],
    "zero_step": [
        ("divide by N", ' / lax.axis_size("data")', ""),
        ("only this device's gradient", SHARD, SLICE.format("g")),
        ("use axis_index", SLICE.format("w"), "w[: m.size]"),
        ("half of an all-reduce", SHARD, SLICE.format('lax.pmean(g, "data")')),
        ("m stays this device's shard", MOMENTUM, WHOLE_MOMENTUM),
    ],
    "fixed_clip": [
        ("add the squares of all devices", LENGTH, "jnp.linalg.norm(g)"),
        ("add the squares", LENGTH, 'lax.psum(jnp.linalg.norm(g), "data")'),
        ("must get the length 0.500", CLIPPED, "g / length"),
    ],
}

RIGHT = {
    "build_sharded": (
        BORN,
        "jax.jit(lambda: lax.with_sharding_constraint(build(), sharding))()",
    ),
    "zero_step": (SHARD, 'lax.psum_scatter(g / 4, "data", tiled=True)'),
    "fixed_clip": (
        LENGTH,
        'jnp.sqrt(lax.all_gather(jnp.square(g).sum(), "data").sum())',
    ),
}
