import numpy as np

CUT = "x.reshape(N, -1, *x.shape[1:])"
SUMS = "jax.pmap(eval_step, in_axes=(None, 0))(state, batch)"
TOTAL = "jax.tree.map(jnp.sum, sums)"
BY_PSUM = """jax.pmap(
        lambda *arguments: lax.psum(eval_step(*arguments), "data"),
        "data",
        in_axes=(None, 0),
        out_axes=None,
    )(state, batch)"""
STACKED = """jax.pmap(eval_step)(
        jax.tree.map(lambda x: np.stack([x] * N), state), batch
    )"""
OVER_A_MESH = (
    'jax.NamedSharding(jax.sharding.Mesh(jax.devices(), ("data",)), jax.P("data"))'
)
OF_THE_HOST = "np.matmul(np.asarray(rows), np.asarray(columns))"
REPLICATED = 'jax.NamedSharding(jax.sharding.Mesh(jax.devices(), ("data",)), jax.P())'
BLOCKS = "jax.pmap(jnp.dot)(rows, columns)"
MAPPED = "jax.pmap(local_accuracy, in_axes=(None, 0, 0))(w, x, labels)"
BY_PMEAN = """jax.pmap(
        lambda *arguments: lax.pmean(local_accuracy(*arguments), "data"),
        "data",
        in_axes=(None, 0, 0),
        out_axes=None,
    )(w, x, labels)"""


BY_THE_COUNT_OF_ALL = """jax.pmap(
        lambda w, x, own: (jnp.dot(x, w).argmax(-1) == own).sum() / labels.size,
        in_axes=(None, 0, 0),
        out_axes=None,
    )(w, x, labels)"""


def accuracy_of_two(w, x, labels):
    return np.mean([(x[d] @ w).argmax(-1) == labels[d] for d in (0, len(x) - 1)])


BY_INDEX = "jax.pmap(lambda d: rows[d] @ columns[d])(jnp.arange(8))"


WRONG = {
    "sums_on_devices": [
        ("each of 8 devices must get 3", CUT, "x.reshape(-1, N, *x.shape[1:])"),
        ("each of 8 devices must get 3", CUT, "x"),
        ("each of 8 devices must get 3", CUT, "x.reshape(N, -1)"),
        ("with jax.pmap", CUT, "x", SUMS, "eval_step(state, batch)"),
        ("with jax.pmap", "jax.pmap(eval_step", "jax.vmap(eval_step"),
        ("add up the 8 numbers", f"return {TOTAL}", "return sums"),
        ("add up the 8 numbers", TOTAL, "jax.device_get(sums)"),
        ("mean of the 8", "jnp.sum", "jnp.mean"),
        ("over all 24 rows", "jnp.sum", "jnp.max"),
        ("device 0's sum alone", "(None, 0))(state", "(None, 0), out_axes=None)(state"),
        ("device 0's sum alone", "jnp.sum", "lambda x: x[0]"),
        ("a dictionary with the names", f"return {TOTAL}", 'return sums["loss"].sum()'),
        (
            "a dictionary with the names",
            f"return {TOTAL}",
            'return {"mean": sums["loss"].sum() / sums["count"].sum()}',
        ),
        (
            "has no device axis",
            "jax.pmap(eval_step, in_axes=(None, 0))",
            "jax.pmap(eval_step)",
        ),
        ("your code raised ValueError", "N, -1,", "N, 16,"),
    ],
    "block_product": [
        ("return the JAX array", BLOCKS, f"np.asarray({BLOCKS})"),
        ("are not row block i", "axis=0)  #", "axis=0)[::-1]  #"),
        ("only 1 of 8 devices", "jax.pmap(jnp.dot)", "jax.vmap(jnp.dot)"),
        (
            "in another order",
            "repeat(",
            "tile(",
            "4, axis=0",
            "(4, 1, 1)",
            "tile(b",
            "repeat(b",
            "(2, 1, 1)",
            "2, axis=0",
        ),
        ("are not row block i", BLOCKS, f"-{BLOCKS}"),
        ("should have the shape", BLOCKS, "a @ b"),
        (
            "before you placed it",
            BLOCKS,
            f"jax.device_put({OF_THE_HOST}, {OVER_A_MESH})",
        ),
        ("before you placed it", BLOCKS, f"jax.pmap(lambda x: x)({OF_THE_HOST})"),
        (
            "before you placed it",
            BLOCKS,
            f"jax.device_put(jnp.matmul(rows, columns), {OVER_A_MESH})",
        ),
        (
            "all of the result",
            BLOCKS,
            f"jax.jit(lambda x: x, out_shardings={REPLICATED})({BLOCKS})",
        ),
    ],
    "fixed_accuracy": [
        ("sum of the 8", f"{MAPPED}.mean()", f"{MAPPED}.sum()"),
        ("over all examples", f"{MAPPED}.mean()", f"{MAPPED}.max()"),
        ("over all examples", f"{MAPPED}.mean()", f"{MAPPED}[-1]"),
        ("over all examples", f"{MAPPED}.mean()", f"jnp.median({MAPPED})"),
        (
            "of device 0 alone",
            "in_axes=(None, 0, 0))(w, x, labels).mean()",
            "in_axes=(None, 0, 0), out_axes=None)(w, x, labels)",
        ),
        ("correct answers, divided by", f"{MAPPED}.mean()", BY_THE_COUNT_OF_ALL),
        ("one number", f"{MAPPED}.mean()", MAPPED),
        ("over all examples", accuracy_of_two),
    ],
}

RIGHT = {
    "sums_on_devices": [
        (SUMS, BY_PSUM, f"return {TOTAL}", "return sums"),
        (SUMS, STACKED),
        (TOTAL, "{name: sum(jax.device_get(sums[name])) for name in sums}"),
    ],
    "block_product": [
        (
            "axis=0)",
            "axis=0).swapaxes(0, 1)",
            "jax.pmap(jnp.dot)",
            "jax.pmap(jnp.matmul, in_axes=(1, 0))",
        ),
        (BLOCKS, BY_INDEX),
        (
            "jnp.repeat(a.reshape(2, -1, K), 4, axis=0)",
            "jnp.asarray(a.reshape(2, -1, K))[jnp.array([0, 0, 0, 0, 1, 1, 1, 1])]",
        ),
    ],
    "fixed_accuracy": [
        (f"{MAPPED}.mean()", BY_PMEAN),
        (f"{MAPPED}.mean()", f"np.mean(jax.device_get({MAPPED}))"),
        (f"{MAPPED}.mean()", "(jnp.matmul(x, w).argmax(-1) == labels).mean()"),
    ],
}
