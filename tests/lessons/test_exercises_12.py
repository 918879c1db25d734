"""The exercises of lesson 12: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import pytest
from checks import check
from jax import lax

LESSON = "12_born_sharded"
pytestmark = pytest.mark.slow


def first_part_of_w(w, g):
    part = lax.psum_scatter(g, "data", tiled=True)
    return w[: part.size] - 0.1 * part


def own_gradient(w, g):
    start, size = lax.axis_index("data") * 2, 2
    return lax.dynamic_slice_in_dim(w - 0.1 * g, start, size)


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("born_in_place", lambda build, sharding: jax.device_put(build(), sharding), "outside of jit"),
        ("born_in_place", lambda build, sharding: jax.jit(build)(), "not as the sharding that was asked for"),
        ("update_in_parts", lambda w, g: w - 0.1 * lax.psum(g, "data"), "this device's part only"),
        ("update_in_parts", first_part_of_w, "use lax.axis_index"),
        ("update_in_parts", own_gradient, "only this device's gradient"),
        ("whole_norm", lambda g: jnp.linalg.norm(g), "the length of this device's part"),
        ("whole_norm", lambda g: lax.psum(jnp.linalg.norm(g), "data"), "their squares do"),
        ("whole_norm", lambda g: lax.psum(jnp.square(g).sum(), "data"), "take the root"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message
