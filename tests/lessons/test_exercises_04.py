"""The exercises of lesson 04: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from checks import check

LESSON = "04_map_over_devices"


def with_device_axis(xs, ys):
    N = len(jax.devices())
    return jax.pmap(jax.vmap(jnp.dot))(xs.reshape(N, -1, 10), ys.reshape(N, -1, 10))


def dealt_like_cards(xs, ys):
    """Row i to device i % N: all dot products are there, in another order."""
    N = len(jax.devices())
    dealt = [array.reshape(-1, N, 10).swapaxes(0, 1) for array in (xs, ys)]
    return jax.pmap(jax.vmap(jnp.dot))(*dealt).reshape(-1)


def rows_for_columns(vector, matrix):
    N = len(jax.devices())
    return jax.pmap(jnp.dot, in_axes=(None, 0))(vector, matrix.reshape(N, 10))


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("dot_product", with_device_axis, "reshape the result at the end"),
        ("dot_product", dealt_like_cards, "result i should be xs[i] . ys[i]"),
        ("dot_product", lambda xs, ys: np.einsum("bd,bd->b", xs, ys), "map over the device axis with jax.pmap"),
        ("dot_product", jax.jit(jax.vmap(jnp.dot)), "only 1 of"),
        ("dot_with_columns", rows_for_columns, "device d should multiply vector with column d"),
        ("dot_with_columns", lambda vector, matrix: jnp.asarray(vector @ matrix), "use jax.pmap with in_axes"),
        ("one_copy", lambda stacked: stacked.addressable_shards[0].data, "which must go"),
        ("one_copy", lambda stacked: stacked.addressable_shards[1].data[0], "not the numbers of device 0"),
        ("one_copy", lambda stacked: np.asarray(stacked)[0], "should lie on device 0 alone"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message
