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
CAST = 'w = lax.pcast(w, "data", to="varying")'
PYTHON_LOOP = (
    "total = sum(jax.grad(loss)(w, rows) for rows in x.reshape(K, -1, x.shape[1]))"
)
MICRO_BATCHES = "x.reshape(K, -1, x.shape[1])"
ALL_AT_ONCE = f"total = jax.vmap(jax.grad(loss), (None, 0))(w, {MICRO_BATCHES}).sum(0)"
MAPPED = f"total = lax.map(lambda rows: {GRADIENT}, {MICRO_BATCHES}).sum(0)"
GATHERED = f"""{CAST}
    x = lax.all_gather(x, "data", tiled=True)
    K = K * lax.axis_size("data")"""
OF_MEAN_LOSS = (GRADIENT, 'jax.grad(lambda w: lax.pmean(loss(w, rows), "data"))(w)')
IN_PYTHON = (SCAN, PYTHON_LOOP.replace("jax.grad(loss)(w, rows)", OF_MEAN_LOSS[1]))
LOSSES = """def total_loss(w):
        def add_loss(total, rows):
            return total + loss(w, rows), None

        zero = lax.pcast(jnp.float32(0), "data", to="varying")
        return lax.scan(add_loss, zero, x.reshape(K, -1, x.shape[1]))[0]

    total = jax.grad(total_loss)(w)"""
RECOMPUTED = LOSSES.replace("loss(w, rows)", "jax.checkpoint(loss)(w, rows)")
MAPPED_LOSSES = f"total = jax.grad(lambda w: lax.map(lambda rows: loss(w, rows), {MICRO_BATCHES}).sum())(w)"

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
            f'lax.pcast(lax.pmean({GRADIENT}, "data"), "data", to="varying")',
        ),
        ("in every round", CAST, "", *OF_MEAN_LOSS, MEAN, "total / K"),
        ("4 times too large", CAST, ""),  # lesson 10's trap
        ("float32[5]{V:data}", "jnp.zeros_like(w)", "jnp.zeros(w.shape)"),
        ("different gradients", MEAN, "total / K"),
        ("4 times too large", "pmean", "psum"),
        ("16 times too large", CAST, "", "pmean", "psum"),
        ("3 times too large", "total / K", "total"),
        ("12 times too large", "total / K", "total", "pmean", "psum"),
        ("not the gradient", SCAN, "total = K * jax.grad(loss)(w, x[: len(x) // K])"),
        ("has the shape (5,)", MEAN, f"{MEAN}.sum()"),
        ("Under jax.vmap", SCAN, ALL_AT_ONCE),
        ("the rows of all others", CAST, GATHERED, MEAN, "total / K"),
        ("jax.grad is around the scan", SCAN, LOSSES),
        ("jax.grad is around the scan", SCAN, MAPPED_LOSSES),
        ("without a scan", SCAN, PYTHON_LOOP),
        ("without a scan", CAST, "", *IN_PYTHON, MEAN, "total / K"),
        (
            "without a scan",
            CAST,
            "",
            SCAN,
            PYTHON_LOOP,
            MEAN,
            'total / K / lax.axis_size("data")',
        ),
    ],
    "join_rows": [
        ("micro-batches one after the other", ".swapaxes(0, 1)", ""),
        ("micro-batches one after the other", JOINED, "jnp.concatenate(logits)"),
        ("[B, C] is", ".reshape(-1, logits.shape[2])", ""),
        ("in one piece", JOINED, "logits.reshape(logits.shape[2], -1).T"),
        ("in one piece", ".swapaxes(0, 1)", "[::-1].swapaxes(0, 1)"),
        ("leave their device", JOINED, BY_NUMBER),
    ],
    "fixed_gradient": [
        ("a mean of means", TOTAL, PER_COUNT, "/ jnp.sum(weights)", "/ len(x)"),
        ("averaged once more", "/ jnp.sum(weights)", "/ jnp.sum(weights) / len(x)"),
        ("in the last micro-batch", "/ jnp.sum(weights)", "/ jnp.sum(weights[0])"),
        (
            "0 / 0",
            TOTAL,
            f"{TOTAL} / weights.sum()",
            SUMS,
            SUMS.replace("jax.grad", "rows[2].sum() * jax.grad"),
        ),
        ("not by the number of rows", "/ jnp.sum(weights)", "/ weights.size"),
        ("divide it by the sum", " / jnp.sum(weights)", ""),
        ("multiply by the weights", "jnp.sum(weights * (", "jnp.sum(1 * ("),
        ("has the shape (5,)", "/ jnp.sum(weights)", "/ jnp.sum(weights, 1)[:, None]"),
    ],
}

RIGHT = {
    "global_gradient": [
        (SCAN, FORI_LOOP),
        (SCAN, MAPPED),
        (SCAN, RECOMPUTED),
        (MEAN, 'lax.all_gather(total / K, "data").mean(0)'),
    ],
    "join_rows": [
        (JOINED, "jnp.stack(list(logits), axis=1).reshape(-1, logits.shape[-1])"),
        (JOINED, 'jnp.einsum("kbc->bkc", logits).reshape(-1, logits.shape[2])'),
    ],
    "fixed_gradient": [
        (TOTAL, PER_COUNT, SUMS, SUMS.replace("jax.grad", "rows[2].sum() * jax.grad")),
        (
            SUMS,
            "jax.grad(total)(w, *(a.reshape(-1, *a.shape[2:]) for a in (x, y, weights)))",
        ),
    ],
}
