"""Solutions of lesson 04's exercises."""

import jax
import jax.numpy as jnp


def dot_product(xs, ys):
    """Dot products `[B]` of the rows of two arrays `[B, 10]`, B / N of them on each device."""
    N = len(jax.devices())
    # pmap wants exactly one row for each device, and vmap maps over the b examples of this row.
    per_device = jax.pmap(jax.vmap(jnp.dot))(xs.reshape(N, -1, 10), ys.reshape(N, -1, 10))  # [N, b]
    return per_device.reshape(-1)


def block_product(a, b):
    """The blocks `[8, m, p]` of `a @ b`, one on each device, for `a` `[2 m, K]` and `b` `[K, 4 p]`."""
    K = len(b)
    rows = jnp.repeat(a.reshape(2, -1, K), 4, axis=0)  # [8, m, K]: blocks 0 0 0 0 1 1 1 1
    # [8, K, p]: blocks 0 1 2 3 0 1 2 3
    columns = jnp.tile(b.reshape(K, 4, -1).swapaxes(0, 1), (2, 1, 1))
    # No device needs another one's result. pmap has a single axis, so we arrange the 2 x 4 blocks by hand. A mesh with
    # two axes does that for you (lesson 15).
    return jax.pmap(jnp.dot)(rows, columns)


def fixed_accuracy(w, x, labels):
    """Fraction of correct answers among all `[N, b]` examples; device d has the examples `[d]`."""

    def local_accuracy(w, x, labels):
        return (jnp.dot(x, w).argmax(-1) == labels).mean()

    # The devices return different numbers, so we stack them and take their mean. With out_axes=None, JAX would only
    # show device 0's number. The mean of the eight means is the mean, because every device has equally many examples.
    return jax.pmap(local_accuracy, in_axes=(None, 0, 0))(w, x, labels).mean()
