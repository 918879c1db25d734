PRODUCT = 'jnp.matmul(hidden, W2, out_sharding=P("data"))'
SPLIT = ', out_sharding=P("data")'
HIDDEN = "jax.nn.relu(x @ W1)"
BY_SHARD_MAP = """jax.shard_map(
        lambda hidden, W2: jax.lax.psum(hidden @ W2, "model"),
        in_specs=(P("data", "model"), P("model")),
        out_specs=P("data"),
    )(hidden, W2)"""
ASSERT = 'assert jax.typeof(x).sharding.spec[0] == "data", f"the batch is not split: {jax.typeof(x)}"'
Z, GRADIENT = (
    "(x - x.mean(0)) / x.std(0)",
    "0.1 * jax.grad(lambda w: jnp.square(z @ w - y).mean())(w)",
)
GATHER = "x, y = jax.reshard(x, P()), jax.reshard(y, P())"
OF_ROWS = "(x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)"
BY_HAND = '0.2 * jnp.einsum("bd,b->d", z, z @ w - y, out_sharding=P()) / len(y)'

OUT = "out_sharding=P()"
CAST = 'jax.reshard(w, P(reduced={"data"}))'
UNREDUCED = 'P(unreduced={"data"})'
REDUCED_EACH_ROUND = "jax.reshard(jax.grad(loss)(w, x), P())"
SCAN = "total, _ = lax.scan(lambda total, x: (total + jax.grad(loss)(w, x), None), zeros, xs)"
STACKED = "total = lax.map(lambda x: jax.grad(loss)(w, x), xs)"
VECTORIZED = "total = jax.vmap(jax.grad(loss), (None, 0))(w, xs).sum(0)"
SUM_OF_LOSSES = "total = jax.grad(lambda w: sum(lax.map(lambda x: loss(w, x), xs)))(w)"
PYTHON_SUM = "total = jax.grad(lambda w: sum(loss(w, x) for x in xs))(w)"
PYTHON_LOOP = "total = zeros\n    for x in xs:\n        total += jax.grad(loss)(w, x)"
FORI_LOOP = "total = lax.fori_loop(0, len(xs), lambda k, total: total + jax.grad(loss)(w, xs[k]), zeros)"
MERGED = "total = jax.grad(loss)(w, xs.swapaxes(0, 1).reshape(-1, xs.shape[2]))"
ADDED_UP = "jax.reshard(total, P())"

WRONG = {
    "fixed_logits": [
        ("your code raised ShardingTypeError", SPLIT, ""),
        ("has other values", PRODUCT, f"{PRODUCT} + 1"),
        ("the ReLU is missing", HIDDEN, "x @ W1"),
        ("the all-reduce is missing", 'P("data")', 'P("data", unreduced={"model"})'),
        ("split its rows over data", 'P("data")', "P()"),
        ("split its rows over data", 'P("data")', 'P("data", "model")'),
        (
            "return a jax.Array [B, C]",
            "hidden, W2",
            "W2.T, hidden.T",
            'P("data")',
            "P()",
        ),
        (
            "a device gets more than",
            PRODUCT,
            'jax.reshard(hidden, P("data")) @ jax.reshard(W2, P())',
        ),
    ],
    "normalized_step": [
        ("of NumPy arrays was accepted", ASSERT, ""),
        (
            "whose x every device holds whole was accepted",
            ASSERT,
            'assert jax.typeof(y).sharding.spec[0] == "data"',
        ),
        (
            "whose x is split by columns was accepted",
            ASSERT,
            "assert any(jax.typeof(x).sharding.spec)",
        ),
        (
            "whose x is split by columns was accepted",
            ASSERT,
            'assert "data" in jax.typeof(x).sharding.spec',
        ),
        (
            "compare its first entry alone",
            ASSERT,
            'assert jax.typeof(x).sharding.spec == jax.P("data")',
        ),
        ("x wasn't normalized", Z, "x"),
        ("not by one less", "x.std(0)", "x.std(0, ddof=1)"),
        ("yours is", "x.std(0)", "x.var(0)"),
        ("yours are the rows'", Z, OF_ROWS),
        ("one for all columns", Z, "(x - x.mean()) / x.std()"),
        ("half as long", ".mean())(w)", ".mean() / 2)(w)"),
        ("the learning rate is 0.1", "0.1 *", "0.01 *"),
        ("not their sum", ".mean())(w)", ".sum())(w)"),
        ("the sign is wrong", "w - 0.1", "w + 0.1"),
        ("the whole batch", ASSERT, f"{ASSERT}\n    {GATHER}"),
        (
            "the whole batch",
            Z,
            f"jax.reshard({Z}, P())",
            "@ w - y",
            "@ w - jax.reshard(y, P())",
        ),
        (
            "that every device holds whole was accepted",
            ASSERT,
            "assert not jax.typeof(x).sharding.mesh.empty",
        ),
    ],
    "sum_gradients": [
        ("run 3 times", CAST, "w", UNREDUCED, "P()"),
        ("run 3 times", "jax.grad(loss)(w, x)", REDUCED_EACH_ROUND, UNREDUCED, "P()"),
        ("the all-reduce is missing", ADDED_UP, "total"),
        ("it must be replicated", ADDED_UP, 'jax.reshard(total, P("data"))'),
        ("the mean of the micro-batches", ADDED_UP, f"{ADDED_UP} / len(xs)"),
        ("the last micro-batch alone", "total + jax", "jax"),
        ("the first micro-batch alone", "zeros, xs)", "zeros, xs[:1])"),
        ("twice", "zeros, xs)", "jax.grad(loss)(w, xs[0]), xs)"),
        ("your code raised ShardingTypeError", UNREDUCED, "P()"),
        ("one micro-batch after the other", SCAN, VECTORIZED),
        ("one micro-batch after the other", SCAN, SUM_OF_LOSSES),
        ("768 rows at once", SCAN, MERGED),
        ("768 rows at once", CAST, "w", SCAN, MERGED),
        ("without a scan", SCAN, PYTHON_SUM),
        ("without a scan", CAST, "w", SCAN, PYTHON_SUM),
        ("without a scan", SCAN, PYTHON_LOOP),
        ("sum first", SCAN, STACKED, ADDED_UP, "jax.reshard(total, P()).sum(0)"),
    ],
}

RIGHT = {
    "fixed_logits": [
        (PRODUCT, BY_SHARD_MAP),
        (PRODUCT, PRODUCT.replace('P("data")', 'P("data", None)')),
        (PRODUCT, 'jnp.einsum("bh,hc->bc", hidden, W2, out_sharding=P("data"))'),
    ],
    "normalized_step": [
        (GRADIENT, BY_HAND),
        (ASSERT, "", Z, f'{Z}\n    assert jax.typeof(z).sharding.spec[0] == "data"'),
    ],
    "sum_gradients": [
        (SCAN, FORI_LOOP),
        (SCAN, STACKED, ADDED_UP, "jax.reshard(total.sum(0), P())"),
    ],
}
