"""Checks of lesson 09's exercises: on a mesh of four devices."""

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.lessons.checks import close, mesh_of, require

N = 4


def require_split(step, arguments, alone):
    """`step` splits the work of `alone`, its version for one device, and replicates its results; returns them."""
    jitted = "return the jitted function itself, whose program can be read: end with return jax.jit(...)"
    require(hasattr(step, "lower"), jitted)
    program = step.lower(*arguments).compile()
    found = step(*arguments)
    for array in jax.tree.leaves(found):
        on_all = isinstance(array, jax.Array) and len(array.sharding.device_set) == N
        place = "the results must be on every device of the mesh: out_shardings=NamedSharding(mesh, PartitionSpec())"
        require(on_all and array.sharding.is_fully_replicated, place)
    share = (
        program.cost_analysis()["flops"]
        / jax.jit(alone).lower(*arguments).compile().cost_analysis()["flops"]
    )
    work = f"each of the {N} devices does {share:.2f} of the work of one device alone, so it computes every example"
    require(share < 0.5, f"{work}: in_shardings can split host arrays")
    return found


def make_trainer(answer):
    """A right update from host arrays, split over the devices."""
    mesh, random = mesh_of(N), np.random.default_rng()
    params = {
        "w": random.normal(size=3).astype(np.float32),
        "offset": np.float32(random.normal()),
    }
    batch = {
        "x": random.normal(size=(512, 3)).astype(np.float32),
        "y": random.normal(size=512).astype(np.float32),
    }

    def loss(params, batch):
        return jnp.square(
            batch["x"] @ params["w"] + params["offset"] - batch["y"]
        ).mean()

    found = require_split(answer(loss, mesh), (params, batch), jax.value_and_grad(loss))
    require(
        isinstance(found, tuple | list) and len(found) == 2,
        "the step returns (params, loss)",
    )
    value, gradients = jax.value_and_grad(loss)(params, batch)
    wanted = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
    require(
        jax.tree.structure(found[0]) == jax.tree.structure(params),
        "new params must be a tree like the old ones",
    )
    require(
        close(found[1], value, atol=1e-5),
        f"the loss is {found[1]:.4f}, on one device it is {value:.4f}",
    )
    for name in params:
        moved, expected = found[0][name] - params[name], wanted[name] - params[name]
        ratio = np.vdot(moved, expected) / np.vdot(expected, expected)
        times = f"the update of {name} is {ratio:.2f} times as long as on one device, p - 0.1 * gradient"
        require(close(moved, expected, atol=1e-5), times)


def fixed_evaluation(answer):
    """The accuracy, with the examples split."""
    mesh, random = mesh_of(N), np.random.default_rng()
    W, images = (
        random.normal(size=shape).astype(np.float32) for shape in ((5, 3), (240, 5))
    )
    labels = random.integers(0, 3, 240).astype(np.int32)
    labels[:60] = (images[:60] @ W).argmax(
        1
    )  # so that the first device's accuracy differs
    found = require_split(
        answer(mesh),
        (W, images, labels),
        lambda W, images, labels: ((images @ W).argmax(1) == labels).mean(),
    )
    wanted = ((images @ W).argmax(1) == labels).mean()
    require(
        close(found, wanted, atol=1e-6),
        f"the accuracy is {wanted:.4f}, yours is {found:.4f}",
    )
