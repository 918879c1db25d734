BORN = "jax.jit(build, out_shardings=sharding)()"
SHARD = 'lax.psum_scatter(g, "data", tiled=True) / lax.axis_size("data")'
SLICE = 'lax.dynamic_slice_in_dim({}, lax.axis_index("data") * m.size, m.size)'
MOMENTUM = "m = 0.9 * m + gradient"
WHOLE_MOMENTUM = """m = 0.9 * lax.all_gather(m, "data", tiled=True) + lax.pmean(g, "data")
    return w - 0.1 * m, m"""
LENGTH = 'jnp.sqrt(lax.psum(jnp.square(g).sum(), "data"))'
CLIPPED = "g / jnp.maximum(1, length)"
MADE = "jax.jit(build)()"
REPLICATED = "jax.jit(build, out_shardings=jax.NamedSharding(sharding.mesh, jax.P()))()"
# Each shard gets the same length, so that the whole has length 1.
OTHER_DIRECTION = """part = g / jnp.linalg.norm(g) / jnp.sqrt(lax.axis_size("data"))
    return jnp.where(length > 1, part, g)"""

WRONG = {
    "build_sharded": [
        ("outside of jit", BORN, "jax.device_put(build(), sharding)"),
        ("not the one that was asked for", "build, out_shardings=sharding", "build"),
        ("made the whole array", BORN, "jax.device_put(jax.jit(build)(), sharding)"),
        (
            "made the whole array",
            BORN,
            "jax.device_put(np.asarray(jax.jit(build)()), sharding)",
        ),
        (
            "made the whole array",
            BORN,
            f"jax.jit(lambda x: x, out_shardings=sharding)({MADE})",
        ),
        ("made the whole array", BORN, f"jax.device_put({REPLICATED}, sharding)"),
        (
            "not the one that was asked for",
            BORN,
            "jax.jit(lambda: jax.device_put(build(), sharding))()",
        ),
        ("other numbers", BORN, f"2 * {BORN}"),
        ("[8, 6]", BORN, f"{BORN}.T"),
    ],
    "zero_step": [
        ("divide by N", ' / lax.axis_size("data")', ""),
        ("divide by lax.axis_size", ' / lax.axis_size("data")', " / 8"),
        ("only this device's gradient", SHARD, SLICE.format("g")),
        ("use axis_index", SLICE.format("w"), "w[: m.size]"),
        (
            "begins at d * m.size",
            '(w, lax.axis_index("data") * m.size',
            '(w, lax.axis_index("data")',
        ),
        ("half of an all-reduce", SHARD, SLICE.format('lax.pmean(g, "data")')),
        (
            "every device's whole gradient",
            SHARD,
            SLICE.format('lax.all_gather(g, "data").mean(0)'),
        ),
        ("m stays this device's shard", MOMENTUM, WHOLE_MOMENTUM),
        ("the old momentum is missing", "0.9 * m + gradient", "gradient"),
        ("without the momentum", "shard - 0.1 * m", "shard - 0.1 * gradient"),
        ("the sign is wrong", "shard - 0.1 * m", "shard + 0.1 * m"),
        (
            "w is [D] = [8] again",
            'lax.all_gather(shard - 0.1 * m, "data", tiled=True, to="invarying")',
            "shard",
        ),
        (
            "w is [D] = [8] again",
            'm, "data", tiled=True, to="invarying")',
            'm, "data")',
        ),
        ("can't see that all devices get the same", ', to="invarying"', ""),
        (
            "different weights",
            'lax.all_gather(shard - 0.1 * m, "data", tiled=True, to="invarying")',
            "jnp.tile(shard, 4)",
        ),
    ],
    "fixed_clip": [
        ("add the squares of all devices", LENGTH, "jnp.linalg.norm(g)"),
        ("add the squares", LENGTH, 'lax.psum(jnp.linalg.norm(g), "data")'),
        ("must get the length 0.500", CLIPPED, "g / length"),
        ("a short gradient stays as it is", CLIPPED, "g / length"),
        ("add the squares", LENGTH, 'lax.pmax(jnp.linalg.norm(g), "data")'),
        ("pmean divides them by N", "lax.psum(jnp.square", "lax.pmean(jnp.square"),
        (
            "the length squared: take the root",
            LENGTH,
            'lax.psum(jnp.square(g).sum(), "data")',
        ),
        ("the direction has changed", f"return {CLIPPED}", OTHER_DIRECTION),
    ],
}

RIGHT = {
    "build_sharded": [
        (BORN, "jax.jit(lambda: lax.with_sharding_constraint(build(), sharding))()"),
        (BORN, "jax.jit(build, out_shardings=sharding).lower().compile()()"),
    ],
    "zero_step": [
        (SHARD, 'lax.psum_scatter(g / 4, "data", tiled=True)'),
        (
            SHARD,
            'lax.all_to_all(g.reshape(lax.axis_size("data"), -1), "data", 0, 0).mean(0)',
        ),
        (
            'lax.all_gather(shard - 0.1 * m, "data", tiled=True, to="invarying")',
            'w - 0.1 * lax.all_gather(m, "data", tiled=True, to="invarying")',
        ),
        (SLICE.format("w"), 'w.reshape(-1, m.size)[lax.axis_index("data")]'),
    ],
    "fixed_clip": [
        (LENGTH, 'jnp.sqrt(lax.all_gather(jnp.square(g).sum(), "data").sum())'),
        (CLIPPED, "g * jnp.minimum(1, 1 / length)"),
    ],
}
