PLACED = "jax.device_put(jax.tree.map(lambda x: x[0], tree), NamedSharding(mesh, PartitionSpec()))"
ON_DEVICES = "jax.tree.map(lambda x: x[0], jax.device_put(tree, NamedSharding(mesh, PartitionSpec())))"
BY_JIT = "jax.jit(lambda t: t, out_shardings=NamedSharding(mesh, PartitionSpec()))(jax.tree.map(lambda x: x[0], tree))"
JIT = "jax.jit(step, in_shardings=(replicated, split, split), out_shardings=replicated)"
SPECS = "mesh=mesh, in_specs=(replicated.spec, split.spec, split.spec), out_specs=replicated.spec"
CHECKED, UNCHECKED = (
    f"jax.jit(jax.shard_map(step, {SPECS}, check_vma={check}))"
    for check in (True, False)
)
UNCOMPILED = f"jax.shard_map(step, {SPECS})"
PLACES_FIRST = f"""compiled = {JIT}

    def place_and_step(w, x, y):
        return compiled(*jax.device_put((w, x, y), (replicated, split, split)))

    return place_and_step"""
RETURN = "w - 0.1 * gradient, value"
AVERAGED = 'w - 0.1 * lax.pmean(gradient, "batch"), lax.pmean(value, "batch")'
GATHERED = "x, y = lax.with_sharding_constraint((x, y), replicated)"
VARIANCE = 'lax.pmean(jnp.square(x - mean).mean(0), "batch")'

GRADIENT = "jax.value_and_grad(lambda w: jnp.square(x @ w - y).mean())(w)"
CAST = '(lax.pcast(w, "batch", to="varying"))'
# The squares' mean over all devices, less the square of this device's mean.
ADDED = (VARIANCE, 'lax.pmean(jnp.square(x).mean(0), "batch") - jnp.square(mean)')
OF_ALL = "jnp.square(x - mean).mean(0)"

WRONG = {
    "drop_device_axis": [
        ("kernel has the shape (4, 8, 3)", "x[0]", "x"),
        ("must have a copy on each", PLACED, "jax.tree.map(lambda x: x[0], tree)"),
        ("kernel has the shape ()", "x[0]", "x.sum()"),
        ("the mean of the 4 copies", "x[0]", "x.mean(0)"),
        ("the last of the 4 copies", "x[0]", "x[-1]"),
        ("the sum of the 4 copies", "x[0]", "x.sum(0)"),
        ("step was int32", "x[0]", "x[0].astype(np.float32)"),
        ("all 4 copies went onto the devices", PLACED, ON_DEVICES),
        ("must have a copy on each", "NamedSharding(mesh, PartitionSpec())", "None"),
    ],
    "make_step": [
        ("lesson 10's trap", RETURN, AVERAGED, JIT, CHECKED),
        (
            "own rows",
            RETURN,
            'w - 0.1 * gradient, lax.pmean(value, "batch")',
            JIT,
            UNCHECKED,
        ),
        (
            "of the work of one device alone",
            "value, gradient =",
            f"{GATHERED}\n        value, gradient =",
        ),
        ("return jax.jit", JIT, "step"),
        (
            "return jax.jit",
            GRADIENT,
            GRADIENT.replace("(w)", CAST),
            RETURN,
            AVERAGED,
            JIT,
            UNCOMPILED,
        ),
        ("w isn't replicated", JIT, "jax.jit(step)"),
        (
            "of the work of one device alone",
            JIT,
            "jax.jit(step, out_shardings=replicated)",
        ),
        ("of the work of one device alone", "(replicated, split, split)", "replicated"),
        ("JAX refuses the arguments w [3]", "(replicated, split, split)", "split"),
        ("0.500 times as long", "0.1 *", "0.05 *"),
        ("not their sum", "- y).mean()", "- y).sum()"),
        ("the loss is", "gradient, value", "gradient, 4 * value"),
    ],
    "corrected_variance": [
        ("the planted mistake", VARIANCE, 'lax.pmean(x.var(0), "batch")'),
        ("different variances", VARIANCE, "x.var(0)"),
        ("different variances", VARIANCE, OF_ALL),
        ("the variance 4 times", VARIANCE, f'lax.psum({OF_ALL}, "batch")'),
        ("different variances", 'lax.pmean(x.mean(0), "batch")', "x.mean(0)", *ADDED),
        ("rows less one", VARIANCE, f"{VARIANCE} * 24 / 23"),
        ("yours is", VARIANCE, f"jnp.sqrt({VARIANCE})"),
    ],
}

RIGHT = {
    "drop_device_axis": [
        (PLACED, BY_JIT),
        ("x[0]", "np.take(x, 0, axis=0)"),
    ],
    "make_step": [
        (f"return {JIT}", PLACES_FIRST),
        (RETURN, AVERAGED, JIT, UNCHECKED),
        (GRADIENT, f"{GRADIENT.replace('(w)', CAST)}", RETURN, AVERAGED, JIT, CHECKED),
    ],
    "corrected_variance": [
        (
            VARIANCE,
            'lax.pmean(jnp.square(x).mean(0), "batch") - jnp.square(mean)',
        ),
        (VARIANCE, 'lax.all_gather(x, "batch", tiled=True).var(0)'),
        (VARIANCE, 'lax.pmean(x.var(0) + jnp.square(x.mean(0) - mean), "batch")'),
    ],
}
