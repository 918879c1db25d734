"""Checks of lesson 10's exercises."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.lessons.checks import require

AXIS = "data"


def random_mesh(random, smallest: int = 2) -> Mesh:
    """A mesh of `smallest` to 8 devices, so that no answer can count on their number."""
    N = int(random.integers(smallest, 9))
    return Mesh(np.array(jax.devices()[:N]), (AXIS,))


def fixed_gradient(answer):
    """The gradient of the global mean, the same on every device, under check_vma=True."""
    random = np.random.default_rng()
    mesh = random_mesh(random, smallest=3)
    N, b = mesh.size, int(random.integers(2, 6))
    x = random.normal(size=(N * b, 3)).astype(np.float32) + 2
    w = {"slope": random.normal(size=3).astype(np.float32), "offset": np.float32(random.normal())}

    def loss(w, x):
        return jnp.square(x @ w["slope"] + w["offset"]).mean()

    def rows(w, x):
        found = answer(loss, w, x)
        require(
            jax.tree.structure(found) == jax.tree.structure(w),
            "the gradient must be a tree like w, with an array of the same shape for each of its arrays",
        )
        return jax.tree.map(lambda g: g[None], found)  # a row per device, so that differences show

    specs = {"in_specs": (PartitionSpec(), PartitionSpec(AXIS)), "out_specs": PartitionSpec(AXIS)}
    per_device = jax.jit(jax.shard_map(rows, mesh=mesh, **specs))(w, x)
    per_device = np.concatenate([np.asarray(g).reshape(N, -1) for g in jax.tree.leaves(per_device)], axis=1)
    expected = np.concatenate([np.asarray(g).ravel() for g in jax.tree.leaves(jax.grad(loss)(w, x))])

    require(
        np.allclose(per_device, per_device[0], rtol=1e-4, atol=1e-4),
        "the devices hold different gradients: each has that of its own examples, and no mean was taken over 'data'",
    )
    cure = "take the mean of the loss inside jax.grad, or cast w first"
    for factor, reason in (
        (
            N,
            "this is the trap. With check_vma=True jax.grad itself sums the gradient over the devices, and a pmean "
            "after that changes nothing",
        ),
        (N * N, "jax.grad already summed over the devices, and a psum did so again"),
    ):
        require(
            not np.allclose(per_device[0], factor * expected, rtol=1e-3, atol=1e-3),
            f"{factor} times too large on {N} devices: {reason}: {cure}",
        )
    require(
        np.allclose(per_device[0], expected, rtol=1e-3, atol=1e-3),
        f"one device with the whole batch finds {expected.round(3)}, yours is {per_device[0].round(3)}",
    )


def make_step(answer):
    """Two updates with momentum, equal to one device, with one all-reduce of the gradients."""
    random = np.random.default_rng()
    mesh = random_mesh(random, smallest=3)
    N, b = mesh.size, int(random.integers(2, 6))
    x, y = random.normal(size=(N * b, 3)).astype(np.float32), random.normal(size=N * b).astype(np.float32)
    params = {"slope": random.normal(size=3).astype(np.float32), "offset": np.float32(random.normal())}
    optimizer = optax.sgd(0.05, momentum=0.9)

    def loss(params, x, y):
        return jnp.square(x @ params["slope"] + params["offset"] - y).mean()

    compiled = answer(loss, optimizer, mesh)
    require(hasattr(compiled, "lower"), "return a compiled function: end with return jax.jit(...)")
    batch = jax.device_put((x, y), NamedSharding(mesh, PartitionSpec(AXIS)))
    jaxpr = str(jax.make_jaxpr(compiled)(params, optimizer.init(params), *batch))
    require("shard_map" in jaxpr, "the step does not use jax.shard_map")
    found, wanted = (params, optimizer.init(params)), (params, optimizer.init(params))
    for update in (1, 2):
        result = compiled(*found, *batch)
        require(
            isinstance(result, tuple) and len(result) == 3,
            "the step returns three things: params, optimizer_state, loss",
        )
        *found, value = result
        expected_value, gradients = jax.value_and_grad(loss)(wanted[0], x, y)
        updates, momentum = optimizer.update(gradients, wanted[1], wanted[0])
        before, wanted = wanted, (optax.apply_updates(wanted[0], updates), momentum)
        held = {float(shard.data.ravel()[0]) for shard in found[0]["offset"].addressable_shards}
        require(len(held) == 1, "the devices have different parameters: each followed the gradient of its own examples")
        moved, expected = (jax.tree.map(jnp.subtract, new[0], before[0]) for new in (found, wanted))
        ratio = float(optax.tree.norm(moved) / optax.tree.norm(expected))
        require(
            not np.isclose(ratio, N, rtol=1e-2),
            f"update {update} is {N} times too long on {N} devices: this is the trap; see check_vma",
        )
        require(
            all(np.allclose(found[0][name], wanted[0][name], rtol=1e-3, atol=1e-4) for name in params),
            f"update {update} is {ratio:.3f} times as long as that of one device",
        )
        require(
            np.allclose(value, expected_value, rtol=1e-3),
            f"the loss of the global batch is {expected_value:.4f}, yours is {np.ravel(value)[0]:.4f}: average it too",
        )
