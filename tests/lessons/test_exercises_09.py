"""The exercises of lesson 09: wrong answers get the message that helps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from pmapdp_lessons.checks import check

LESSON = "09_let_the_compiler_do_it"


def shardings(mesh):
    return NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))


def trainer(mean=lambda loss: loss, **options):
    """An answer to `make_trainer`, with other shardings or another loss."""

    def answer(loss, mesh):
        whole, split = shardings(mesh)

        def step(params, batch):
            value, gradients = jax.value_and_grad(mean(loss))(params, batch)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

        given = {"in_shardings": (whole, split), "out_shardings": whole} | options
        return jax.jit(step, **{name: value(mesh) if callable(value) else value for name, value in given.items()})

    return answer


def planted(mesh):
    return jax.jit(
        lambda W, images, labels: ((images @ W).argmax(1) == labels).mean(),
        in_shardings=shardings(mesh)[0],
        out_shardings=shardings(mesh)[0],
    )


@pytest.mark.parametrize(
    ("exercise", "wrong", "help"),
    [
        ("make_trainer", trainer(in_shardings=None), "every device gets all 16 rows of x"),
        ("make_trainer", trainer(out_shardings=lambda mesh: shardings(mesh)[1]), "the PartitionSpec should be P()"),
        ("make_trainer", trainer(lambda loss: lambda p, b: 16 * loss(p, b)), "on one device it is"),
        ("make_trainer", lambda loss, mesh: loss, "return jax.jit"),
        ("mended_evaluation", planted, "every device gets all 24 rows of images"),
    ],
)
def test_wrong_answers_get_the_message_that_helps(exercise, wrong, help):
    verdict = check(LESSON, exercise, wrong)
    assert not verdict.solved
    assert help in verdict.message


def test_an_uncommitted_batch_is_computed_by_every_device_and_a_committed_one_is_an_error():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    whole, split = shardings(mesh)
    W, x = jax.device_put(np.ones((5, 3), np.float32), whole), np.ones((8, 5), np.float32)
    product = jax.jit(lambda W, x: (x @ W).sum(0), out_shardings=whole)

    def of_the_batch(x):
        return product.lower(W, x).compile().input_shardings[0][1].spec

    assert of_the_batch(jax.device_put(x, split)) == PartitionSpec("data")
    assert of_the_batch(x) == of_the_batch(jnp.asarray(x)) == PartitionSpec()
    with pytest.raises(ValueError, match="incompatible devices"):
        product(W, jax.device_put(x, jax.devices()[0]))
