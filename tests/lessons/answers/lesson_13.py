"""Answers to the exercises of lesson 13; see ../test_exercises.py."""

SCAN = "total, _ = lax.scan(add, jnp.zeros_like(w), x.reshape(K, -1, x.shape[1]))"
GRADIENT, MEAN = "jax.grad(loss)(w, rows)", 'lax.pmean(total / K, "data")'
IN_PARTS = "total = sum({} for rows in x.reshape(K, -1, x.shape[1]))"
IN_SLICES = "n = len(x) // K\n    total = sum(jax.grad(loss)(w, x[k * n : (k + 1) * n]) for k in range(K))"
FORI_LOOP = """rows = x.reshape(K, -1, x.shape[1])
    total = lax.fori_loop(0, K, lambda k, total: total + jax.grad(loss)(w, rows[k]), jnp.zeros_like(w))"""
OF_MEAN_LOSS = """rows = x.reshape(K, -1, x.shape[1])
    total = K * jax.grad(lambda w: lax.map(lambda part: loss(w, part), rows).mean())(w)"""
CUT = "x.reshape(-1, K, x.shape[1]).swapaxes(0, 1)"
TOTAL = "jnp.sum(weights * (x @ w - y) ** 2)"
SUMS = "sum(jax.grad(total)(w, *rows) for rows in zip(x, y, weights, strict=True))"
PER_COUNT = f"{TOTAL} / jnp.maximum(weights.sum(), 1)"

WRONG = {
    "global_gradient": [
        ("loss was called with 6 of the 6 rows", SCAN, "total = K * jax.grad(loss)(w, x)"),
        ("exchange 15 numbers", GRADIENT, f'lax.pmean({GRADIENT}, "data")', MEAN, "total / K"),
        ("exchange 15 numbers", SCAN, IN_PARTS.format(f'lax.pmean({GRADIENT}, "data")'), MEAN, "total / K"),
        ("different gradients", MEAN, "total / K"),
        ("average over the devices", "pmean", "psum"),
        ("divide by the number of micro-batches", "total / K", "total"),
        ("not the gradient", SCAN, "total = K * jax.grad(loss)(w, x[: len(x) // K])"),
    ],
    "cut_rows": [
        ("but they move", CUT, "x.reshape(K, -1, x.shape[1])"),
        ("[K, B / K, D] is", ".swapaxes(0, 1)", ""),
        ("not those of x", CUT, "x.reshape(K, x.shape[1], -1).swapaxes(1, 2)"),
        ("not those of x", CUT, "jnp.stack([x[::K]] * K)"),
    ],
    "fixed_gradient": [
        ("in the last micro-batch", TOTAL, PER_COUNT, "/ jnp.sum(weights)", "/ len(x)"),
        ("in the last micro-batch", "/ jnp.sum(weights)", "/ y.size"),
        ("in the last micro-batch", TOTAL, "jnp.sum((x @ w - y) ** 2)", "/ jnp.sum(weights)", "/ y.size"),
    ],
}

RIGHT = {
    "global_gradient": [
        (SCAN, IN_SLICES, MEAN, 'lax.psum(total, "data") / (K * lax.axis_size("data"))'),
        (SCAN, OF_MEAN_LOSS),
        (SCAN, FORI_LOOP),
    ],
    "cut_rows": [
        (CUT, "x.reshape(4, K, -1, x.shape[1]).swapaxes(0, 1).reshape(K, -1, x.shape[1])"),
        (CUT, "jnp.stack([x[k::K] for k in range(K)])"),
    ],
    "fixed_gradient": [
        (TOTAL, PER_COUNT, SUMS, SUMS.replace("jax.grad", "rows[2].sum() * jax.grad")),
        (SUMS, "jax.grad(total)(w, x, y, weights)"),
    ],
}
