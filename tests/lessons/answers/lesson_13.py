SCAN = "total, _ = lax.scan(add, jnp.zeros_like(w), x.reshape(K, -1, x.shape[1]))"
GRADIENT, MEAN = "jax.grad(loss)(w, rows)", 'lax.pmean(total / K, "data")'
FORI_LOOP = """rows = x.reshape(K, -1, x.shape[1])
    total = lax.fori_loop(0, K, lambda k, total: total + jax.grad(loss)(w, rows[k]), jnp.zeros_like(w))"""
JOINED = "logits.swapaxes(0, 1).reshape(-1, logits.shape[2])"
BY_NUMBER = """logits.reshape(-1, logits.shape[2])[
        jnp.arange(logits[..., 0].size).reshape(len(logits), -1).T.ravel()]"""
TOTAL = "jnp.sum(weights * (x @ w - y) ** 2)"
SUMS = "sum(jax.grad(total)(w, *rows) for rows in zip(x, y, weights, strict=True))"
PER_COUNT = f"{TOTAL} / jnp.maximum(weights.sum(), 1)"

WRONG = {
    "global_gradient": [
        (
            "loss was called with 6 of the 6 rows",
            SCAN,
            "total = K * jax.grad(loss)(w, x)",
        ),
        (
            "in every round",
            GRADIENT,
            f'lax.pmean({GRADIENT}, "data")',
            MEAN,
            "total / K",
        ),
        ("different gradients", MEAN, "total / K"),
        ("average over the devices", "pmean", "psum"),
        ("divide by the number of micro-batches", "total / K", "total"),
        ("not the gradient", SCAN, "total = K * jax.grad(loss)(w, x[: len(x) // K])"),
    ],
    "join_rows": [
        ("micro-batches one after the other", ".swapaxes(0, 1)", ""),
        ("[B, C] is", ".reshape(-1, logits.shape[2])", ""),
        ("in one piece", JOINED, "logits.reshape(logits.shape[2], -1).T"),
        ("leave their device", JOINED, BY_NUMBER),
    ],
    "fixed_gradient": [
        ("in the last micro-batch", TOTAL, PER_COUNT, "/ jnp.sum(weights)", "/ len(x)")
    ],
}

RIGHT = {
    "global_gradient": (SCAN, FORI_LOOP),
    "join_rows": (
        JOINED,
        "jnp.stack(list(logits), axis=1).reshape(-1, logits.shape[-1])",
    ),
    "fixed_gradient": (
        TOTAL,
        PER_COUNT,
        SUMS,
        SUMS.replace("jax.grad", "rows[2].sum() * jax.grad"),
    ),
}
