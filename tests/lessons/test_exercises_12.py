"""The exercises of lesson 12: wrong answers get the message that helps; other right ones pass."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import P, lax
from jax.sharding import NamedSharding

from pmapdp_lessons.checks import check

LESSON = "12_port_a_pmap_program"
pytestmark = pytest.mark.slow


def replicate(tree, mesh, *axes):
    return jax.device_put(tree, NamedSharding(mesh, P(*axes)))


def squares(w, x, y):
    return jnp.square(x @ w - y).mean()


def mapped(gradient, value=squares, check_vma=False):
    """An answer to `ported` with `shard_map`."""

    def answer(mesh):
        def step(w, x, y):
            return w - 0.1 * gradient(w, x, y), lax.pmean(value(w, x, y), "batch")

        specs = {"in_specs": (P(), P("batch"), P("batch")), "out_specs": P()}
        return jax.jit(jax.shard_map(step, mesh=mesh, **specs, check_vma=check_vma))

    return answer


def averaged(w, x, y):
    return lax.pmean(jax.grad(squares)(w, x, y), "batch")


def loss_averaged(w, x, y):
    return jax.grad(lambda w: lax.pmean(squares(w, x, y), "batch"))(w)


def own(w, x, y):
    return jax.grad(squares)(w, x, y)


def gathered(mesh):
    def step(w, x, y):
        x, y = (lax.with_sharding_constraint(each, NamedSharding(mesh, P())) for each in (x, y))
        value, gradient = jax.value_and_grad(squares)(w, x, y)
        return w - 0.1 * gradient, value

    return jax.jit(step, out_shardings=NamedSharding(mesh, P()))


@pytest.mark.parametrize("answer", [mapped(averaged), mapped(loss_averaged, check_vma=True)])
def test_ports_to_shard_map_pass(answer):
    verdict = check(LESSON, "ported", answer)
    assert verdict.solved, verdict.message


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("unstacked", lambda tree, mesh: replicate(tree, mesh), "still has the shape"),
        ("unstacked", lambda tree, mesh: jax.tree.map(lambda x: x[0], tree), "on the host"),
        ("unstacked", lambda tree, mesh: replicate(jax.tree.map(np.sum, tree), mesh), "still has the shape ()"),
        ("ported", mapped(averaged, check_vma=True), "is 4.000 times as long"),
        ("ported", mapped(own), "own rows"),
        ("ported", gathered, "nobody adds up"),
        ("ported", lambda mesh: squares, "return jax.jit"),
        ("mended_variance", lambda x: lax.pmean(x.var(0), "batch"), "the planted mistake"),
        ("mended_variance", lambda x: x.var(0), "different variances"),
        (
            "mended_variance",
            lambda x: lax.psum(jnp.square(x - lax.pmean(x.mean(0), "batch")).mean(0), "batch"),
            "yours is",
        ),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message
