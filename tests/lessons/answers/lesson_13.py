"""Answers to the exercises of lesson 13; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
from jax import lax


def rows_of(x, K):
    return x.reshape(K, -1, x.shape[1])


def summed(loss, w, x, K):
    return sum(jax.grad(loss)(w, rows) for rows in rows_of(x, K))


def pmean_inside(loss, w, x, K):
    return sum(lax.pmean(jax.grad(loss)(w, rows), "data") for rows in rows_of(x, K)) / K


def pmean_inside_a_loop(loss, w, x, K):
    def add(total, rows):
        return total + lax.pmean(jax.grad(loss)(w, rows), "data"), None

    return lax.scan(add, jnp.zeros_like(w), rows_of(x, K))[0] / K


def in_slices(loss, w, x, K):
    n, total = len(x) // K, 0
    for k in range(K):
        total = total + jax.grad(loss)(w, x[k * n : (k + 1) * n])
    return lax.psum(total, "data") / (K * lax.axis_size("data"))


def of_the_mean_of_losses(loss, w, x, K):
    def mean(w):
        return lax.map(lambda rows: loss(w, rows), rows_of(x, K)).mean()

    return lax.pmean(jax.grad(mean)(w), "data")


def by_fori_loop(loss, w, x, K):
    rows = rows_of(x, K)
    mean = lax.fori_loop(0, K, lambda k, total: total + jax.grad(loss)(w, rows[k]) / K, jnp.zeros_like(w))
    return lax.pmean(mean, "data")


def squares(w, x, y, weights):
    return jnp.sum(weights * (x @ w - y) ** 2)


def mean_of_means(w, x, y, weights):
    def mean(w, x, y, weights):
        return squares(w, x, y, weights) / jnp.maximum(weights.sum(), 1)

    return sum(jax.grad(mean)(w, *rows) for rows in zip(x, y, weights, strict=True)) / len(x)


def weighted_means(w, x, y, weights):
    counts = weights.sum(1)

    def mean(w, x, y, weights):
        return squares(w, x, y, weights) / jnp.maximum(weights.sum(), 1)

    found = [jax.grad(mean)(w, *rows) for rows in zip(x, y, weights, strict=True)]
    return sum(gradient * count for gradient, count in zip(found, counts, strict=True)) / counts.sum()


WRONG = {
    "accumulate": [
        ("loss was called with 6 of the 6 rows", lambda loss, w, x, K: lax.pmean(jax.grad(loss)(w, x), "data")),
        ("exchange 15 numbers", pmean_inside),
        ("exchange 15 numbers", pmean_inside_a_loop),
        ("different gradients", lambda loss, w, x, K: summed(loss, w, x, K) / K),
        ("average over the devices", lambda loss, w, x, K: lax.psum(summed(loss, w, x, K) / K, "data")),
        ("divide by the number of micro-batches", lambda *given: lax.pmean(summed(*given), "data")),
        ("not the gradient", lambda loss, w, x, K: lax.pmean(jax.grad(loss)(w, rows_of(x, K)[0]), "data")),
    ],
    "cut_rows": [
        ("but they move", rows_of),
        ("[K, B / K, D] is", lambda x, K: x.reshape(-1, K, x.shape[1])),
        ("not those of x", lambda x, K: x.reshape(K, x.shape[1], -1).swapaxes(1, 2)),
        ("not those of x", lambda x, K: jnp.stack([x[::K]] * K)),
    ],
    "fixed_gradient": [
        ("in the last micro-batch", mean_of_means),
        ("in the last micro-batch", lambda w, x, y, weights: jax.grad(squares)(w, x, y, 1) / y.size),
        ("in the last micro-batch", lambda w, x, y, weights: jax.grad(squares)(w, x, y, weights) / y.size),
    ],
}

RIGHT = {
    "accumulate": [in_slices, of_the_mean_of_losses, by_fori_loop],
    "cut_rows": [
        lambda x, K: x.reshape(4, K, -1, x.shape[1]).swapaxes(0, 1).reshape(K, -1, x.shape[1]),
        lambda x, K: jnp.stack([x[k::K] for k in range(K)]),
    ],
    "fixed_gradient": [weighted_means, lambda *given: jax.grad(squares)(*given) / given[-1].sum()],
}
