"""Solutions of lesson 04's exercises."""

import jax
import jax.numpy as jnp


def sums_on_devices(eval_step, state, batch):
    """The sums over a batch `[B, ...]`, computed on N devices: a dictionary of numbers."""
    N = jax.device_count()
    # pmap wants a device axis of exactly N, so device d gets the rows from d * B / N on. The state has no such axis.
    batch = jax.tree.map(lambda x: x.reshape(N, -1, *x.shape[1:]), batch)  # [N, b, ...]
    sums = jax.pmap(eval_step, in_axes=(None, 0))(state, batch)  # each sum is [N]
    return jax.tree.map(jnp.sum, sums)


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
