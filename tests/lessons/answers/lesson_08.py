VMAP = "jax.vmap(lambda index: jax.random.fold_in(key, index))(indices)"
UPDATE, LAYER = "key(seed), update)", "update), layer)"
INDEX_FIRST = """jax.vmap(
        lambda i: fold(fold(fold(jax.random.key(seed), i), layer), update)
    )(indices)""".replace("fold", "jax.random.fold_in")
PMAP = 'jax.pmap(sums, axis_name="data", out_axes=None)'
SUMS, RATIO = (
    'lax.psum((correct.sum(), weights.sum()), "data")',
    "totals[0] / totals[1]",
)
RESHAPE, STARTS = ".reshape(N, b, *array.shape[1:])", "range(0, len(rows[0]), N * b)"
BOTH = 'lax.psum((weights @ x, weights.sum()), "data")'
ADDED_INDEX = """jax.vmap(
        lambda i: fold(fold(jax.random.key(seed), layer), update + i)
    )(indices)""".replace("fold", "jax.random.fold_in")
ADDED_LAYER = """jax.vmap(
        lambda i: fold(fold(jax.random.key(seed), update), layer + i)
    )(indices)""".replace("fold", "jax.random.fold_in")
WITH_THE_DEVICE = """jax.vmap(
        lambda i: fold(fold(key, lax.axis_index("data")), i)
    )(indices)""".replace("fold", "jax.random.fold_in")
MESH = 'jax.sharding.Mesh(np.array(jax.devices()), ("data",))'
SPLIT = f'jax.NamedSharding({MESH}, jax.P("data"))'
BY_SHARD_MAP = f"""jax.jit(
        jax.shard_map(sums, mesh={MESH}, in_specs=jax.P("data"), out_specs=jax.P())
    )"""
SUMS_OF_ALL = "(correct.sum(), weights.sum())"
UNDER_VMAP_IN_AXES = "jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, indices)"


WRONG = {
    "row_keys": [
        ("one more update and one less index", VMAP, ADDED_INDEX),
        ("one more layer and one less index", VMAP, ADDED_LAYER),
        ("is on another device", VMAP, WITH_THE_DEVICE),
        ("the same key", VMAP, "jax.vmap(lambda index: key)(indices)"),
        ("place in the batch", VMAP, "jax.random.split(key, len(indices))"),
        ("fold in the update", UPDATE, "key(seed), 0)"),
        ("fold in the layer", LAYER, "update), 0)"),
        ("another seed gives the same keys", "key(seed)", "key(0)"),
        ("numbers were added up", UPDATE, "key(seed + update), 0)"),
        ("numbers were added up", LAYER, "update + layer), 0)"),
        ("one each", VMAP, "key"),
        ("update * layer", LAYER, "update * layer), 0)"),
        ("1000 * seed + update", UPDATE, "key(1000 * seed + update), 0)"),
        ("1000 * update + layer", LAYER, "0), 1000 * update + layer)"),
        (
            "index 1000 of a layer",
            VMAP,
            "jax.vmap(lambda index: jax.random.fold_in(jax.random.key(seed), "
            "(update * 100 + layer) * 1000 + index))(indices)",
        ),
    ],
    "exact_accuracy": [
        ("these are full batches", RATIO, "1 - totals[0] / totals[1]"),
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
        (
            "isn't split over the 8 devices",
            SUMS,
            SUMS_OF_ALL,
            PMAP,
            "sums",
            RESHAPE,
            "",
        ),
        (
            "isn't split over the 8 devices",
            SUMS,
            SUMS_OF_ALL,
            PMAP,
            "jax.jit(sums)",
            RESHAPE,
            "",
        ),
    ],
    "fixed_mean": [
        (
            "padding was added",
            "weights @ x",
            "x.sum(0)",
            "weights.sum()",
            "1.0 * len(x)",
        ),
        ("as in the count", "weights @ x", "x.sum(0)"),
        ("this is the sum", "total / count", "total"),
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
        (
            "a mean of the devices' means",
            BOTH,
            'lax.pmean(weights @ x / jnp.maximum(weights.sum(), 1), "data"), 1',
        ),
    ],
}

RIGHT = {
    "row_keys": [
        (VMAP, INDEX_FIRST),
        ("(key, index)", "(key, index + 0 * lax.axis_index('data'))"),
        (VMAP, UNDER_VMAP_IN_AXES),
    ],
    "exact_accuracy": [
        (
            SUMS,
            SUMS_OF_ALL,
            PMAP,
            f"jax.jit(sums, in_shardings={SPLIT})",
            RESHAPE,
            "",
        ),
        (PMAP, BY_SHARD_MAP, RESHAPE, ""),
        (SUMS, SUMS.replace("psum", "pmean")),
    ],
    "fixed_mean": [
        ("psum", "pmean"),
        ("weights @ x", "(weights[:, None] * x).sum(0)"),
    ],
}
