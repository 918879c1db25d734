"""Answers to the exercises of lesson 09; see ../test_exercises.py."""

import jax
from jax.sharding import NamedSharding, PartitionSpec


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


WRONG = {
    "make_trainer": [
        ("every device gets all 16 rows of x", trainer(in_shardings=None)),
        ("the PartitionSpec should be P()", trainer(out_shardings=lambda mesh: shardings(mesh)[1])),
        ("on one device it is", trainer(lambda loss: lambda p, b: 16 * loss(p, b))),
        ("return jax.jit", lambda loss, mesh: loss),
    ],
    "mended_evaluation": [
        ("every device gets all 24 rows of images", planted),
    ],
}

RIGHT = {}
