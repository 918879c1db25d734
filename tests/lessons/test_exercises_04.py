"""The exercises of lesson 04: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pmapdp_lessons.checks import check

LESSON = "04_map_over_devices"


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


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("dot_product", with_device_axis, "reshape the result at the end"),
        ("dot_product", dealt_like_cards, "result i should be xs[i] . ys[i]"),
        ("dot_product", lambda xs, ys: np.einsum("bd,bd->b", xs, ys), "map over the device axis with jax.pmap"),
        ("dot_product", jax.jit(jax.vmap(jnp.dot)), "only 1 of"),
        ("block_product", blocks, "only 1 of 8 devices"),
        ("block_product", lambda a, b: blocks(a, b, (1, 0)), "in another order"),
        ("block_product", lambda a, b: -blocks(a, b), "are not row block i"),
        ("block_product", lambda a, b: a @ b, "should have the shape"),
        ("mended_accuracy", with_accuracy(None), "of device 0 alone"),
        ("mended_accuracy", with_accuracy(0), "one number"),
        ("mended_accuracy", lambda *all: 1 - with_accuracy(0)(*all).mean(), "over all examples"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message
