"""Answers to the exercises of lesson 04; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def with_device_axis(xs, ys):
    N = len(jax.devices())
    return jax.pmap(jax.vmap(jnp.dot))(xs.reshape(N, -1, 10), ys.reshape(N, -1, 10))


def dealt_like_cards(xs, ys):
    """Row i to device i % N: all dot products are there, in another order."""
    N = len(jax.devices())
    dealt = [array.reshape(-1, N, 10).swapaxes(0, 1) for array in (xs, ys)]
    return jax.pmap(jax.vmap(jnp.dot))(*dealt).reshape(-1)


def blocks(a, b, order=(0, 0)):
    m, p = len(a) // 2, b.shape[1] // 4
    stacked = np.stack([[a[i * m :][:m] @ b[:, j * p :][:, :p] for j in range(4)] for i in range(2)])
    return jnp.asarray(stacked.swapaxes(*order).reshape(8, m, p))


def with_accuracy(out_axes):
    def accuracy(w, x, labels):
        def of_one_device(w, x, labels):
            return (jnp.dot(x, w).argmax(-1) == labels).mean()

        return jax.pmap(of_one_device, in_axes=(None, 0, 0), out_axes=out_axes)(w, x, labels)

    return accuracy


def over_a_mesh():
    mesh = Mesh(np.array(jax.devices()), ("data",))
    return NamedSharding(mesh, PartitionSpec("data"))


def dots_by_jit(xs, ys):
    xs, ys = jax.device_put((xs, ys), over_a_mesh())
    return jax.jit(lambda xs, ys: (xs * ys).sum(1))(xs, ys)


def dots_by_shard_map(xs, ys):
    spec = PartitionSpec("data")
    mesh = over_a_mesh().mesh
    return jax.shard_map(jax.vmap(jnp.dot), mesh=mesh, in_specs=(spec, spec), out_specs=spec)(xs, ys)


def blocks_in_axes(a, b):
    m, p = len(a) // 2, b.shape[1] // 4
    starts = [(i * m, j * p) for i in range(2) for j in range(4)]
    rows = jnp.stack([a[i : i + m] for i, _ in starts], axis=1)  # [m, 8, K]
    columns = jnp.stack([b[:, j : j + p] for _, j in starts])
    return jax.pmap(jnp.matmul, in_axes=(1, 0))(rows, columns)


def blocks_by_index(a, b):
    m, p = len(a) // 2, b.shape[1] // 4

    def one(d, a, b):
        rows = jax.lax.dynamic_slice_in_dim(a, d // 4 * m, m)
        return rows @ jax.lax.dynamic_slice_in_dim(b, d % 4 * p, p, axis=1)

    return jax.pmap(one, in_axes=(0, None, None))(jnp.arange(8), a, b)


def accuracy_by_pmean(w, x, labels):
    def one(w, x, labels):
        return jax.lax.pmean((x @ w).argmax(-1) == labels, "data").mean()

    return jax.pmap(one, axis_name="data", in_axes=(None, 0, 0), out_axes=None)(w, x, labels)


def accuracy_from_the_host(w, x, labels):
    right = jax.pmap(lambda w, x, labels: (x @ w).argmax(-1) == labels, in_axes=(None, 0, 0))(w, x, labels)
    return float(jax.device_get(right).mean())


def accuracy_of_two(w, x, labels):
    return np.mean([(x[d] @ w).argmax(-1) == labels[d] for d in (0, len(x) - 1)])


WRONG = {
    "dot_product": [
        ("reshape the result at the end", with_device_axis),
        ("result i should be xs[i] . ys[i]", dealt_like_cards),
        ("map over the device axis with jax.pmap", lambda xs, ys: np.einsum("bd,bd->b", xs, ys)),
        ("only 1 of", jax.jit(jax.vmap(jnp.dot))),
    ],
    "block_product": [
        ("only 1 of 8 devices", blocks),
        ("in another order", lambda a, b: blocks(a, b, (1, 0))),
        ("are not row block i", lambda a, b: -blocks(a, b)),
        ("should have the shape", lambda a, b: a @ b),
    ],
    "fixed_accuracy": [
        ("of device 0 alone", with_accuracy(None)),
        ("one number", with_accuracy(0)),
        ("over all examples", accuracy_of_two),
        ("over all examples", lambda *all: 1 - with_accuracy(0)(*all).mean()),
    ],
}

RIGHT = {
    "dot_product": [dots_by_jit, dots_by_shard_map],
    "block_product": [blocks_in_axes, blocks_by_index],
    "fixed_accuracy": [accuracy_by_pmean, accuracy_from_the_host],
}
