"""The exercises of lesson 16: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from pmapdp_lessons.checks import check

LESSON = "16_born_sharded"
pytestmark = pytest.mark.slow


def step(shard=lambda g: lax.psum_scatter(g, "data", tiled=True) / 4, index=lambda: lax.axis_index("data")):
    def answer(w, g, m):
        m = 0.9 * m + shard(g)
        mine = lax.dynamic_slice_in_dim(w, index() * m.size, m.size) - 0.1 * m
        return lax.all_gather(mine, "data", tiled=True), m

    return answer


def slice_of(g):
    return lax.dynamic_slice_in_dim(g, lax.axis_index("data") * 2, 2)


def whole_momentum(w, g, m):
    m = 0.9 * lax.all_gather(m, "data", tiled=True) + lax.pmean(g, "data")
    return w - 0.1 * m, m


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("born_in_place", lambda build, sharding: jax.device_put(build(), sharding), "outside of jit"),
        ("born_in_place", lambda build, sharding: jax.jit(build)(), "not the one that was asked for"),
        ("zero_step", step(lambda g: lax.psum_scatter(g, "data", tiled=True)), "divide by N"),
        ("zero_step", step(slice_of), "only this device's gradient"),
        ("zero_step", step(index=lambda: 0), "use axis_index"),
        ("zero_step", step(lambda g: slice_of(lax.pmean(g, "data"))), "half of an all-reduce"),
        ("zero_step", whole_momentum, "m stays this device's shard"),
        ("mended_clip", lambda g: g / jnp.maximum(1, jnp.linalg.norm(g)), "add the squares of all devices"),
        ("mended_clip", lambda g: g / jnp.maximum(1, lax.psum(jnp.linalg.norm(g), "data")), "add the squares"),
        ("mended_clip", lambda g: g / jnp.sqrt(lax.psum(jnp.square(g).sum(), "data")), "must get the length 0.500"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message
