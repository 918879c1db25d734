PLACED = "jax.device_put(jax.tree.map(lambda x: x[0], tree), NamedSharding(mesh, PartitionSpec()))"
ON_DEVICES = "jax.tree.map(lambda x: x[0], jax.device_put(tree, NamedSharding(mesh, PartitionSpec())))"
BY_JIT = "jax.jit(lambda t: t, out_shardings=NamedSharding(mesh, PartitionSpec()))(jax.tree.map(lambda x: x[0], tree))"
JIT = "jax.jit(step, in_shardings=(replicated, split, split), out_shardings=replicated)"
SPECS = "mesh=mesh, in_specs=(replicated.spec, split.spec, split.spec), out_specs=replicated.spec"
CHECKED, UNCHECKED = (
    f"jax.jit(jax.shard_map(step, {SPECS}, check_vma={check}))"
    for check in (True, False)
)
RETURN = "w - 0.1 * gradient, value"
AVERAGED = 'w - 0.1 * lax.pmean(gradient, "batch"), lax.pmean(value, "batch")'
GATHERED = "x, y = lax.with_sharding_constraint((x, y), replicated)"
VARIANCE = 'lax.pmean(jnp.square(x - mean).mean(0), "batch")'

WRONG = {
    "drop_device_axis": [
        ("still has the shape", "x[0]", "x"),
        ("must have a copy on each", PLACED, "jax.tree.map(lambda x: x[0], tree)"),
        ("still has the shape ()", "x[0]", "x.sum()"),
        ("all 4 copies went onto the devices", PLACED, ON_DEVICES),
    ],
    "make_step": [
        ("is 4.000 times as long", RETURN, AVERAGED, JIT, CHECKED),
        (
            "own rows",
            RETURN,
            'w - 0.1 * gradient, lax.pmean(value, "batch")',
            JIT,
            UNCHECKED,
        ),
        (
            "nobody adds up",
            "value, gradient =",
            f"{GATHERED}\n        value, gradient =",
        ),
        ("return jax.jit", JIT, "step"),
    ],
    "corrected_variance": [
        ("the planted mistake", VARIANCE, 'lax.pmean(x.var(0), "batch")'),
        ("different variances", VARIANCE, "x.var(0)"),
        ("yours is", VARIANCE, 'lax.psum(jnp.square(x - mean).mean(0), "batch")'),
    ],
}

RIGHT = {
    "drop_device_axis": (PLACED, BY_JIT),
    "make_step": (RETURN, AVERAGED, JIT, UNCHECKED),
    "corrected_variance": (
        VARIANCE,
        'lax.pmean(jnp.square(x).mean(0), "batch") - jnp.square(mean)',
    ),
}
