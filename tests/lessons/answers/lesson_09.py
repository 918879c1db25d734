"""Answers to the exercises of lesson 09; see ../test_exercises.py."""

import jax
import jax.numpy as jnp
from jax import P, lax
from jax.sharding import NamedSharding


def shardings(mesh):
    return NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))


def step_of(loss):
    def step(params, batch):
        value, gradients = jax.value_and_grad(loss)(params, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    return step


def replicates_all(loss, mesh):
    replicated, _ = shardings(mesh)
    return jax.jit(step_of(loss), in_shardings=(replicated, replicated), out_shardings=replicated)


def only_out_shardings(loss, mesh):
    return jax.jit(step_of(loss), out_shardings=shardings(mesh)[0])


def splits_results(loss, mesh):
    return jax.jit(step_of(loss), in_shardings=shardings(mesh), out_shardings=shardings(mesh)[1])


def sums_the_loss(loss, mesh):
    def of_all(params, batch):
        return 512 * loss(params, batch)

    return jax.jit(step_of(of_all), in_shardings=shardings(mesh), out_shardings=shardings(mesh)[0])


def mapped(step, mesh):
    return jax.jit(jax.shard_map(step, mesh=mesh, in_specs=(P(), P("data")), out_specs=P(), check_vma=False))


def forgets_the_mean(loss, mesh):
    return mapped(step_of(loss), mesh)


def by_shard_map(loss, mesh):
    def step(params, batch):
        value, gradients = lax.pmean(jax.value_and_grad(loss)(params, batch), "data")
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    return mapped(step, mesh)


def by_a_constraint(loss, mesh):
    replicated, split = shardings(mesh)

    def step(params, batch):
        return step_of(loss)(params, lax.with_sharding_constraint(batch, split))

    return jax.jit(step, out_shardings=replicated)


def params_left_open(loss, mesh):
    replicated, split = shardings(mesh)
    return jax.jit(step_of(loss), in_shardings=(None, split), out_shardings=(replicated, replicated))


def accuracy(W, images, labels):
    return ((images @ W).argmax(1) == labels).mean()


def evaluation(function=accuracy, images="data", labels="data"):
    def answer(mesh):
        places = [NamedSharding(mesh, P(axis) if axis else P()) for axis in (None, images, labels)]
        return jax.jit(function, in_shardings=tuple(places), out_shardings=places[0])

    return answer


def mapped_evaluation(function):
    def answer(mesh):
        specs = {"in_specs": (P(), P("data"), P("data")), "out_specs": P(), "check_vma": False}
        return jax.jit(jax.shard_map(function, mesh=mesh, **specs))

    return answer


WRONG = {
    "make_trainer": [
        ("so it computes every example", replicates_all),
        ("so it computes every example", only_out_shardings),
        ("the PartitionSpec should be P()", splits_results),
        ("on one device it is", sums_the_loss),
        ("on one device it is", forgets_the_mean),
        ("return jax.jit", lambda loss, mesh: step_of(loss)),
        ("must be on every device", lambda loss, mesh: jax.jit(step_of(loss))),
    ],
    "fixed_evaluation": [
        ("so it computes every example", evaluation(images=None, labels=None)),
        ("so it computes every example", lambda mesh: jax.jit(accuracy, out_shardings=shardings(mesh)[0])),
        ("the accuracy is", mapped_evaluation(accuracy)),
        ("the accuracy is", evaluation(lambda W, images, labels: (images @ W).argmax(1).mean())),
    ],
}

RIGHT = {
    "make_trainer": [by_shard_map, by_a_constraint, params_left_open],
    "fixed_evaluation": [
        evaluation(labels=None),
        mapped_evaluation(lambda *given: lax.pmean(accuracy(*given).astype(jnp.float32), "data")),
    ],
}
