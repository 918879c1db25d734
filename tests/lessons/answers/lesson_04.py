import numpy as np

PER_DEVICE = "jax.pmap(jax.vmap(jnp.dot))(xs.reshape(N, -1, 10), ys.reshape(N, -1, 10))"
CARDS = """jax.pmap(jax.vmap(jnp.dot))(
        xs.reshape(-1, N, 10).swapaxes(0, 1), ys.reshape(-1, N, 10).swapaxes(0, 1)
    )"""
OVER_A_MESH = (
    'jax.NamedSharding(jax.sharding.Mesh(jax.devices(), ("data",)), jax.P("data"))'
)
ON_THE_HOST = 'np.einsum("bd,bd->b", xs, ys)'
OF_THE_HOST = "np.matmul(np.asarray(rows), np.asarray(columns))"
REPLICATED = 'jax.NamedSharding(jax.sharding.Mesh(jax.devices(), ("data",)), jax.P())'
BY_JIT = f"""jax.jit(lambda xs, ys: (xs * ys).sum(1))(
        *jax.device_put((xs, ys), {OVER_A_MESH})
    )"""
BLOCKS = "jax.pmap(jnp.dot)(rows, columns)"
MAPPED = "jax.pmap(local_accuracy, in_axes=(None, 0, 0))(w, x, labels)"
BY_PMEAN = """jax.pmap(
        lambda *arguments: lax.pmean(local_accuracy(*arguments), "data"),
        "data",
        in_axes=(None, 0, 0),
        out_axes=None,
    )(w, x, labels)"""


def accuracy_of_two(w, x, labels):
    return np.mean([(x[d] @ w).argmax(-1) == labels[d] for d in (0, len(x) - 1)])


BY_INDEX = "jax.pmap(lambda d: rows[d] @ columns[d])(jnp.arange(8))"


WRONG = {
    "dot_product": [
        ("return the JAX array", "return per_device", "return np.asarray(per_device)"),
        ("should be xs[i] . ys[i]", "(jnp.dot)", "(lambda x, y: (x * y).mean())"),
        ("reshape the result at the end", ".reshape(-1)", ""),
        ("use jax.vmap inside pmap", "jax.vmap(jnp.dot)", "lambda x, y: x @ y.T"),
        ("result i should be xs[i] . ys[i]", PER_DEVICE, CARDS),
        ("on the host", PER_DEVICE, 'np.einsum("bd,bd->b", xs, ys)'),
        ("only 1 of", PER_DEVICE, "jax.vmap(jnp.dot)(xs, ys)"),
        (
            "before you placed it",
            PER_DEVICE,
            f"jax.device_put({ON_THE_HOST}, {OVER_A_MESH})",
        ),
        (
            "before you placed it",
            PER_DEVICE,
            f"jax.pmap(lambda x: x)({ON_THE_HOST}.reshape(N, -1))",
        ),
        (
            "before you placed it",
            PER_DEVICE,
            f"jax.device_put(jax.vmap(jnp.dot)(xs, ys), {OVER_A_MESH})",
        ),
        (
            "all of the result",
            "return per_device.reshape(-1)",
            f"return jax.jit(lambda x: x, out_shardings={REPLICATED})(\n"
            "        per_device.reshape(-1)\n    )",
        ),
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
        ("one number", f"{MAPPED}.mean()", MAPPED),
        ("over all examples", accuracy_of_two),
    ],
}

RIGHT = {
    "dot_product": [
        (PER_DEVICE, BY_JIT),
        ("jax.vmap(jnp.dot)", "lambda x, y: (x * y).sum(-1)"),
        ("jax.vmap(jnp.dot)", "lambda x, y: (jnp.asarray(x) * y).sum(-1)"),
        (
            PER_DEVICE,
            f"jax.vmap(jnp.dot)(*jax.device_put((xs, ys), {OVER_A_MESH}))",
        ),
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
