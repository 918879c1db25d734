"""Checks of lesson 10's exercises."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding, PartitionSpec

from pmapdp.lessons.checks import close, mesh_of, refuse, require

N, b = 5, 3  # devices that no answer counts on


def fixed_gradient(answer):
    """The gradient of the global mean, the same on every device, under check_vma=True."""
    random, mesh = np.random.default_rng(), mesh_of(N)
    x = random.normal(size=(N * b, 3)).astype(np.float32) + 2
    w = {
        "slope": random.normal(size=3).astype(np.float32),
        "offset": np.float32(random.normal()),
    }

    def loss(w, x):
        return jnp.square(x @ w["slope"] + w["offset"]).mean()

    def rows(w, x):
        found = answer(loss, w, x)
        like_w = "the gradient must be a tree like w, with an array of the same shape for each of its arrays"
        require(jax.tree.structure(found) == jax.tree.structure(w), like_w)
        return jax.tree.map(
            lambda g: g[None], found
        )  # a row per device, so that differences show

    specs = {
        "in_specs": (PartitionSpec(), PartitionSpec("data")),
        "out_specs": PartitionSpec("data"),
    }
    per_device = jax.jit(jax.shard_map(rows, mesh=mesh, **specs))(w, x)
    per_device = np.concatenate(
        [np.asarray(g).reshape(N, -1) for g in jax.tree.leaves(per_device)], axis=1
    )
    expected = np.concatenate(
        [np.asarray(g).ravel() for g in jax.tree.leaves(jax.grad(loss)(w, x))]
    )

    own = "each one follows its own examples, and no mean was taken over 'data'"
    require(
        close(per_device, per_device[0]), f"the devices hold different gradients: {own}"
    )
    trap = "this is the trap. With check_vma=True jax.grad itself sums the gradient over the devices, and a pmean "
    twice = "jax.grad already summed over the devices, and a psum did so again"
    cure = "take the mean of the loss inside jax.grad, or cast w first"
    mistakes = {
        f"{N} times too large on {N} devices: {trap}after that changes nothing: {cure}": N
        * expected,
        f"{N * N} times too large on {N} devices: {twice}: {cure}": N * N * expected,
    }
    refuse(per_device[0], mistakes)
    wanted = f"one device with the whole batch finds {expected.round(3)}, yours is {per_device[0].round(3)}"
    require(close(per_device[0], expected, atol=1e-3), wanted)


def make_step(answer):
    """Two updates with momentum, equal to one device, with one all-reduce of the gradients."""
    random, mesh = np.random.default_rng(), mesh_of(N)
    x, y = (
        random.normal(size=(N * b, 3)).astype(np.float32),
        random.normal(size=N * b).astype(np.float32),
    )
    params = {
        "slope": random.normal(size=3).astype(np.float32),
        "offset": np.float32(random.normal()),
    }
    optimizer = optax.sgd(0.05, momentum=0.9)

    def loss(params, x, y):
        return jnp.square(x @ params["slope"] + params["offset"] - y).mean()

    compiled = answer(loss, optimizer, mesh)
    require(
        hasattr(compiled, "lower"),
        "return a compiled function: end with return jax.jit(...)",
    )
    batch = jax.device_put((x, y), NamedSharding(mesh, PartitionSpec("data")))
    jaxpr = str(jax.make_jaxpr(compiled)(params, optimizer.init(params), *batch))
    require("shard_map" in jaxpr, "the step does not use jax.shard_map")
    found, wanted = (params, optimizer.init(params)), (params, optimizer.init(params))
    for update in (1, 2):
        result = compiled(*found, *batch)
        three = isinstance(result, tuple) and len(result) == 3
        require(three, "the step returns three things: params, optimizer_state, loss")
        *found, value = result
        expected_value, gradients = jax.value_and_grad(loss)(wanted[0], x, y)
        updates, momentum = optimizer.update(gradients, wanted[1], wanted[0])
        before, wanted = wanted, (optax.apply_updates(wanted[0], updates), momentum)
        held = {
            float(shard.data.ravel()[0])
            for shard in found[0]["offset"].addressable_shards
        }
        require(
            len(held) == 1,
            "the devices have different parameters: each followed the gradient of its own examples",
        )
        moved, expected = (
            jax.tree.map(jnp.subtract, new[0], before[0]) for new in (found, wanted)
        )
        ratio = float(optax.tree.norm(moved) / optax.tree.norm(expected))
        trap = f"update {update} is {N} times too long on {N} devices: this is the trap; see check_vma"
        require(not np.isclose(ratio, N, rtol=1e-2), trap)
        right = all(close(found[0][name], wanted[0][name]) for name in params)
        require(right, f"update {update} is {ratio:.3f} times as long as on one device")
        average = f"the loss is {expected_value:.4f} on one device, yours is {np.ravel(value)[0]:.4f}: average it too"
        require(close(value, expected_value), average)
