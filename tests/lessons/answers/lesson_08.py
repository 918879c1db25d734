VMAP = "jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)"
UPDATE, LAYER = "key(seed), update)", "update), layer)"
INDEX_FIRST = """jax.vmap(
        lambda i: jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), i), layer), update)
    )(indices)"""
PMAP = 'jax.pmap(sums, axis_name="data", out_axes=None)'
SUMS, RATIO = (
    'lax.psum((correct.sum(), weights.sum()), "data")',
    "totals[0] / totals[1]",
)
RESHAPE, STARTS = ".reshape(N, b, *array.shape[1:])", "range(0, len(rows[0]), N * b)"
BOTH = 'lax.psum((weights @ x, weights.sum()), "data")'

WRONG = {
    "row_keys": [
        ("place in the batch", VMAP, "jax.random.split(key, len(indices))"),
        ("fold in the update", UPDATE, "key(seed), 0)"),
        ("fold in the layer", LAYER, "update), 0)"),
        ("another seed gives the same keys", "key(seed)", "key(0)"),
        ("numbers were added up", UPDATE, "key(seed + update), 0)"),
        ("numbers were added up", LAYER, "update + layer), 0)"),
        ("one each", VMAP, "key"),
    ],
    "exact_accuracy": [
        (
            "instead of dropping it",
            "-len(x) % (N * b)",
            "0",
            STARTS,
            "range(0, len(x) // (N * b) * N * b, N * b)",
        ),
        (
            "divides 0 by 0",
            SUMS,
            'lax.pmean((correct.sum() / weights.sum(), 1.0), "data")',
        ),
        ("padding has weight 0", "weights.sum()), ", "1.0 * len(x)), "),
        ("at a time", RATIO, "(predict(x).argmax(-1) == labels).mean()"),
    ],
    "fixed_mean": [
        ("count the weights", "weights.sum()", "1.0 * len(x)"),
        (
            "both go through lax.psum",
            BOTH,
            'lax.psum(weights @ x, "data"), jnp.maximum(weights.sum(), 1)',
        ),
        (
            "divide after the psum",
            BOTH,
            'lax.pmean(weights @ x / weights.sum(), "data"), 1',
        ),
    ],
}

RIGHT = {
    "row_keys": (VMAP, INDEX_FIRST),
    "exact_accuracy": (
        SUMS,
        "(correct.sum(), weights.sum())",
        PMAP,
        "jax.jit(sums)",
        RESHAPE,
        "",
    ),
    "fixed_mean": ("psum", "pmean"),
}
