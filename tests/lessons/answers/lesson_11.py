TYPED, GRAM = "jax.eval_shape(function, x)", "jnp.matmul(x.T, x, out_sharding=P())"
GATHERED = 'jnp.einsum("bi,bj->ij", *[jax.reshard(x, P())] * 2)'
BY_SHARD_MAP = 'jax.shard_map(lambda x: REDUCED, in_specs=P("data"), out_specs=P(), check_vma=False)(x)'
ASSERT = 'assert jax.typeof(x).sharding.spec[0] == "data", f"the batch is not split: {jax.typeof(x)}"'
Z, GRADIENT = (
    "(x - x.mean(0)) / x.std(0)",
    "0.1 * jax.grad(lambda w: jnp.square(z @ w - y).mean())(w)",
)
BY_HAND = '0.2 * jnp.einsum("bd,b->d", z, z @ w - y, out_sharding=P()) / len(y)'

OUT = "out_sharding=P()"

WRONG = {
    "result_spec": [
        ("trace it only", TYPED, "jax.typeof(function(x))"),
        ("the spec of x.T", TYPED, "x"),
        ("the spec of x.T", f"{TYPED}.sharding.spec", 'P("data")'),
        ("return a PartitionSpec", ".sharding.spec", ""),
        ("return a PartitionSpec", ".sharding.spec", ".sharding"),
        (
            "the spec of x.sum(0)",
            f"{TYPED}.sharding.spec",
            f'P(*(None, "data")[2 - {TYPED}.ndim :])',
        ),
    ],
    "fixed_gram": [
        ("your code raised ShardingTypeError", f", {OUT}", ""),
        ("x.T @ x has other values", GRAM, f"{GRAM} + 1"),
        ("every device gets the rows of all others", GRAM, GATHERED),
        ("it must be replicated", OUT, 'out_sharding=P("data")'),
        ("it must be replicated", OUT, 'out_sharding=P(None, "data")'),
        ("return a jax.Array [D, D]", "x.T, x", "x, x.T"),
    ],
    "normalized_step": [
        ("of NumPy arrays was accepted", ASSERT, ""),
        ("yours is", Z, "x"),
        ("yours is", "x.std(0)", "x.std(0, ddof=1)"),
        ("yours is", "0.1 *", "0.01 *"),
        ("yours is", ".mean())(w)", ".sum())(w)"),
        (
            "that every device holds whole was accepted",
            ASSERT,
            "assert not jax.typeof(x).sharding.mesh.empty",
        ),
    ],
}

RIGHT = {
    "result_spec": [
        (TYPED, "jax.jit(function).lower(x).out_info"),
        (TYPED, "jax.make_jaxpr(function)(x).out_avals[0]"),
    ],
    "fixed_gram": [
        (GRAM, BY_SHARD_MAP.replace("REDUCED", 'jax.lax.psum(x.T @ x, "data")')),
        (GRAM, f'jnp.einsum("bi,bj->ij", x, x, {OUT})'),
    ],
    "normalized_step": [
        (GRADIENT, BY_HAND),
        (ASSERT, 'assert "data" in jax.typeof(x).sharding.spec'),
    ],
}
