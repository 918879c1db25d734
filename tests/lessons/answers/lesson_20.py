MEAN = "gradients.astype(jnp.float32).mean(0)"
LOOP = "sum(list(gradients), start=jnp.zeros(gradients.shape[1], {})) / len(gradients)"
GRADIENT = "jax.grad(lambda w: scale * loss(w))(w)"
RETURNED = "gradient.astype(jnp.float32) / scale"
GROUPS = "layers.reshape(-1, group_size, *layers.shape[1:])"
SCAN = "lax.scan(group, x, groups)[0]"
EACH = "lax.scan(lambda x, w: (jax.checkpoint(layer)(x, w), None), x, layers)[0]"
PLAIN = "lax.scan(lambda x, w: (layer(x, w), None), x, layers)[0]"
DOTS = (
    "@jax.checkpoint",
    ("@lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)"),
)

WRONG = {
    "fixed_mean": [
        ("is rounded away", MEAN, LOOP.format("jnp.bfloat16")),
        (
            "is rounded away",
            MEAN,
            f"({LOOP.format('jnp.bfloat16')}).astype(jnp.float32)",
        ),
        (
            "is rounded away",
            MEAN,
            "sum(g / len(gradients) for g in gradients).astype(jnp.float32)",
        ),
        ("rounded to two bytes", MEAN, "gradients.mean(0).astype(jnp.float32)"),
        (
            "rounded to two bytes",
            MEAN,
            "gradients.sum(0).astype(jnp.float32) / len(gradients)",
        ),
        (
            "rounded to two bytes",
            MEAN,
            "jnp.mean(gradients.astype(jnp.float32), 0).astype(jnp.bfloat16)"
            ".astype(jnp.float32)",
        ),
        (
            "not finite",
            MEAN,
            "sum(list(gradients.astype(jnp.float16))) / jnp.float32(len(gradients))",
        ),
        ("this is the sum", "mean(0)", "sum(0)"),
        ("yours has the shape (700,)", "mean(0)", "mean(1)"),
        ("return float32", MEAN, f"{MEAN}.astype(jnp.bfloat16)"),
        ("return float32", ".astype(jnp.float32)", ""),
    ],
    "scaled_gradient": [
        ("has made 0", GRADIENT, "scale * jax.grad(loss)(w)"),
        ("has made 0", RETURNED, "(gradient / scale).astype(jnp.float32)"),
        ("has made 0", GRADIENT, "jax.grad(loss)(w)", " / scale", ""),
        ("times too long", " / scale", ""),
        (
            "another dtype than float16",
            "loss(w))(w)",
            "loss(w))(w.astype(jnp.float32))",
        ),
        ("yours is", "scale * loss(w)", "2 * scale * loss(w)"),
        ("has the shape (3,)", RETURNED, f"({RETURNED}).sum()"),
    ],
    "in_groups": [
        ("in groups of 3 need 4", SCAN, PLAIN),
        ("one for each layer", SCAN, EACH),
        (
            "all layers are in one checkpoint",
            SCAN,
            "group(x, layers)[0]",
        ),
        (
            "you made 3 groups",
            GROUPS,
            "layers.reshape(group_size, -1, *layers.shape[1:])",
        ),
        ("give another output", GROUPS, f"{GROUPS}[::-1]"),
        ("give another output", GROUPS, f"{GROUPS}[1:]"),
        ("in groups of 3 need 4", *DOTS),
        ("yours has (4, 32, 8)", SCAN, "jnp.stack([group(x, g)[0] for g in groups])"),
    ],
}

RIGHT = {
    "fixed_mean": [
        (MEAN, LOOP.format("jnp.float32")),
        (MEAN, "gradients.mean(0, dtype=jnp.float32)"),
        (MEAN, "jnp.ones(len(gradients)) @ gradients / len(gradients)"),
    ],
    "scaled_gradient": [
        (RETURNED, "jnp.float32(gradient) / scale"),
        (GRADIENT, "jax.vjp(loss, w)[1](jnp.float16(scale))[0]"),
    ],
    "in_groups": [
        ("@jax.checkpoint", "@jax.remat"),
        (
            SCAN,
            "[x := group(x, some_layers)[0] for some_layers in groups][-1]",
        ),
        ("layer(x, w)", "jax.checkpoint(layer)(x, w)"),
    ],
}
