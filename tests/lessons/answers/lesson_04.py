import numpy as np

PER_DEVICE = "jax.pmap(jax.vmap(jnp.dot))(xs.reshape(N, -1, 10), ys.reshape(N, -1, 10))"
CARDS = "jax.pmap(jax.vmap(jnp.dot))(*[each.reshape(-1, N, 10).swapaxes(0, 1) for each in (xs, ys)])"
OVER_A_MESH = (
    'jax.NamedSharding(jax.sharding.Mesh(jax.devices(), ("data",)), jax.P("data"))'
)
BY_JIT = f"jax.jit(lambda xs, ys: (xs * ys).sum(1))(*jax.device_put((xs, ys), {OVER_A_MESH}))"
BLOCKS = "jax.pmap(jnp.dot)(rows, columns)"
MAPPED = "jax.pmap(local_accuracy, in_axes=(None, 0, 0))(w, x, labels)"
BY_PMEAN = """jax.pmap(
        lambda *each: lax.pmean(local_accuracy(*each), "data"), "data", in_axes=(None, 0, 0), out_axes=None
    )(w, x, labels)"""


def accuracy_of_two(w, x, labels):
    return np.mean([(x[d] @ w).argmax(-1) == labels[d] for d in (0, len(x) - 1)])


WRONG = {
    "dot_product": [
        ("reshape the result at the end", ".reshape(-1)", ""),
        ("result i should be xs[i] . ys[i]", PER_DEVICE, CARDS),
        (
            "map over the device axis with jax.pmap",
            PER_DEVICE,
            'np.einsum("bd,bd->b", xs, ys)',
        ),
        ("only 1 of", PER_DEVICE, "jax.vmap(jnp.dot)(xs, ys)"),
    ],
    "block_product": [
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
    ],
    "fixed_accuracy": [
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
    "dot_product": (PER_DEVICE, BY_JIT),
    "block_product": (
        "axis=0)",
        "axis=0).swapaxes(0, 1)",
        "jax.pmap(jnp.dot)",
        "jax.pmap(jnp.matmul, in_axes=(1, 0))",
    ),
    "fixed_accuracy": (f"{MAPPED}.mean()", BY_PMEAN),
}
