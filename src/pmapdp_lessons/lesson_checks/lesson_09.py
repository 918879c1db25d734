"""Checks of lesson 09's exercises: on a mesh of four devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from pmapdp.compare.collectives import collectives
from pmapdp_lessons.checks import require

N = 4


def mesh_of_four():
    """Four devices along the axis "data"."""
    return Mesh(np.array(jax.devices()[:N]), ("data",))


def require_split(compiled, arguments, batch):
    """The program of `compiled` splits the batch, replicates its results and all-reduces; returns its result."""
    require(hasattr(compiled, "lower"), "return a compiled function: end with return jax.jit(...)")
    program = compiled.lower(*arguments).compile()
    shardings = jax.tree.leaves(program.input_shardings[0])
    shards = {name: shardings[index].shard_shape(shape) for name, index, shape in batch}
    for name, _, shape in batch:
        require(
            shards[name] != shape,
            f"every device gets all {shape[0]} rows of {name} and computes them: in_shardings can split host arrays",
        )
        require(
            shards[name][0] == shape[0] // N,
            f"{name} {shape} arrives as {shards[name]} on a device: split axis 0 over 'data'",
        )
    for sharding in jax.tree.leaves(program.output_shardings):
        require(
            len(sharding.device_set) == N and sharding.is_fully_replicated,
            "the results must be on every device of the mesh: out_shardings=NamedSharding(mesh, PartitionSpec())",
        )
    require(
        "all-reduce" in [each.kind for each in collectives(program.as_text())],
        "the compiled program has no all-reduce, so no device hears of the others' examples",
    )
    return compiled(*arguments)


def make_trainer(answer):
    """A right update from host arrays, split over the devices."""
    mesh, random = mesh_of_four(), np.random.default_rng()
    params = {"w": random.normal(size=3).astype(np.float32), "offset": np.float32(random.normal())}
    batch = {"x": random.normal(size=(16, 3)).astype(np.float32), "y": random.normal(size=16).astype(np.float32)}

    def loss(params, batch):
        return jnp.square(batch["x"] @ params["w"] + params["offset"] - batch["y"]).mean()

    compiled = answer(loss, mesh)
    # Leaves of the arguments in order: params' offset and w, then the batch's x and y.
    found = require_split(compiled, (params, batch), [("x", 2, (16, 3)), ("y", 3, (16,))])
    require(isinstance(found, tuple) and len(found) == 2, "the step returns (params, loss)")
    value, gradients = jax.value_and_grad(loss)(params, batch)
    wanted = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)
    require(
        jax.tree.structure(found[0]) == jax.tree.structure(params), "the new params must be a tree like the old ones"
    )
    require(np.allclose(found[1], value, atol=1e-5), f"the loss is {found[1]:.4f}, on one device it is {value:.4f}")
    for name in params:
        moved, expected = found[0][name] - params[name], wanted[name] - params[name]
        ratio = np.vdot(moved, expected) / np.vdot(expected, expected)
        require(
            np.allclose(moved, expected, rtol=1e-3, atol=1e-5),
            f"the update of {name} is {ratio:.2f} times that of one device, which is p - 0.1 * gradient",
        )


def mended_evaluation(answer):
    """The accuracy, with the examples split."""
    mesh, random = mesh_of_four(), np.random.default_rng()
    W, images = (random.normal(size=shape).astype(np.float32) for shape in ((5, 3), (24, 5)))
    labels = random.integers(0, 3, 24).astype(np.int32)
    compiled = answer(mesh)
    found = require_split(compiled, (W, images, labels), [("images", 1, (24, 5)), ("labels", 2, (24,))])
    wanted = ((images @ W).argmax(1) == labels).mean()
    require(np.allclose(found, wanted, atol=1e-6), f"the accuracy is {wanted:.4f}, yours is {found:.4f}")
