"""Checks of lesson 10's exercises."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import P
from jax.sharding import NamedSharding

from pmapdp.lessons.checks import NotYetError, close, mesh_of, refuse, require

N, b = 5, 3  # devices that no answer counts on, and their examples


def make_problem():
    """Make a linear model, its loss, and a batch.

    Returns:
        params, loss(params, x, y), x `[N * b, 3]` and y `[N * b]`.
    """
    random = np.random.default_rng(0)
    params = {
        "slope": random.normal(size=3).astype(np.float32),
        "offset": np.float32(random.normal()),
    }
    x = random.normal(size=(N * b, 3)).astype(np.float32) + 2
    y = random.normal(size=N * b).astype(np.float32)

    def loss(params, x, y):
        predictions = x @ params["slope"] + params["offset"]
        return jnp.square(predictions - y).mean()

    return params, loss, x, y


def flatten(gradients):
    """Join the arrays of a tree, each `[N, ...]`, to `[N, numbers]`."""
    rows = [np.asarray(g).reshape(N, -1) for g in jax.tree.leaves(gradients)]
    return np.concatenate(rows, axis=1)


def fixed_gradient(answer):
    """Accept the gradient of the global mean on every device, with the check on."""
    w, loss_of_targets, x, _ = make_problem()

    def loss(w, x):
        return loss_of_targets(w, x, 0)

    def gradient_of_device(w, x):
        gradient = answer(loss, w, x)
        require(
            jax.tree.structure(gradient) == jax.tree.structure(w),
            "the gradient must be a tree like w, "
            "with an array of the same shape for each of its arrays",
        )
        return jax.tree.map(lambda g: g[None], gradient)  # a row per device

    mapped = jax.shard_map(
        gradient_of_device,
        mesh=mesh_of(N),
        in_specs=(P(), P("data")),
        out_specs=P("data"),
    )
    found = flatten(jax.jit(mapped)(w, x))
    expected_tree = jax.grad(loss)(w, x)
    expected = np.concatenate([np.ravel(g) for g in jax.tree.leaves(expected_tree)])
    require(
        close(found, found[0]),
        "the devices hold different gradients: each one follows its own examples, "
        "and no mean was taken over 'data'",
    )
    cure = "take the mean of the loss inside jax.grad, or cast w first"
    mistakes = {
        f"{N} times too large on {N} devices. Either psum took the place of pmean, or "
        "this is the trap: with check_vma=True jax.grad itself sums the gradient over "
        f"the devices, and a pmean after that changes nothing: {cure}": N * expected,
        f"{N * N} times too large on {N} devices: jax.grad already summed over the "
        f"devices, and a psum did so again: {cure}": N * N * expected,
        f"you divide by {jax.device_count()}, but this check runs on {N} devices. Use "
        "lax.axis_size('data')": N / jax.device_count() * expected,
        f"{N} times too small on {N} devices, because you divide by {N} twice: average "
        "the loss or the gradients, not both": expected / N,
    }
    refuse(found[0], mistakes)
    require(
        close(found[0], expected, atol=1e-3),
        f"one device with the whole batch finds {expected.round(3)}, "
        f"yours is {found[0].round(3)}",
    )


def trace(step, *arguments):
    """Return the jaxpr of a step as a text, unless JAX finds that results vary."""
    try:
        return str(jax.make_jaxpr(step)(*arguments))
    except ValueError as error:
        varying = str(error).count("could not infer replication")
        if varying == 0:
            raise
        if varying == 1:
            advice = "It's one array, as the loss is: take the mean of the loss, too"
        else:
            advice = "Take the mean of the gradients over 'data', and of the loss"
        raise NotYetError(
            "JAX refuses the step, because a result may differ from device to device "
            f'("can\'t be statically inferred"). {advice}'
        ) from error


def make_step(answer):
    """Accept a step that makes one device's updates: two with momentum, and one clipped.

    Returns:
        A remark if the step turns the check off, or None.
    """
    params, loss, x, y = make_problem()
    mesh = mesh_of(N)
    optimizer = optax.sgd(0.01, momentum=0.9)
    row_counts = []

    def counted_loss(params, x, y):
        row_counts.append(len(x))
        return loss(params, x, y)

    step = answer(counted_loss, optimizer, mesh)
    require(
        hasattr(step, "lower"),
        "return a compiled function: end with return jax.jit(...)",
    )
    batch = jax.device_put((x, y), NamedSharding(mesh, P("data")))
    optimizer_state = optimizer.init(params)
    jaxpr = trace(step, params, optimizer_state, *batch)
    require("shard_map" in jaxpr, "the step does not use jax.shard_map")
    found = (params, optimizer_state)
    wanted = (params, optimizer_state)
    for update in (1, 2):
        copies = jax.tree.map(jnp.copy, found)  # for a step that donates them
        result = step(*copies, *batch)
        require(
            isinstance(result, tuple) and len(result) == 3,
            "the step returns three things: params, optimizer_state, loss",
        )
        old_params, wanted_state = wanted
        wanted_loss, gradients = jax.value_and_grad(loss)(old_params, x, y)
        updates, wanted_state = optimizer.update(gradients, wanted_state, old_params)
        wanted = (optax.apply_updates(old_params, updates), wanted_state)
        found_before = found[0]
        found = result[:2]
        shards = found[0]["offset"].addressable_shards
        require(
            len({float(np.ravel(shard.data)[0]) for shard in shards}) == 1,
            "the devices have different parameters: "
            "each followed the gradient of its own examples",
        )
        found_update = jax.tree.map(jnp.subtract, found[0], found_before)
        ratio = float(optax.tree.norm(found_update) / optax.tree.norm(updates))
        require(
            not np.isclose(ratio, N, rtol=1e-2),
            f"update {update} is {N} times too long on {N} devices. Either psum took "
            "the place of pmean, or this is the trap: see check_vma",
        )
        require(
            not np.isclose(ratio, N / jax.device_count(), rtol=1e-2),
            f"update {update} is {ratio:.3f} times as long as on one device: you divide "
            f"by {jax.device_count()}, but this mesh has {N} devices. Use "
            "lax.axis_size('data') or mesh.size",
        )
        require(
            close(found[0], wanted[0]),
            f"update {update} is {ratio:.3f} times as long as on one device",
        )
        require(
            not close(result[2], N * wanted_loss),
            f"the loss is {N} times too large on {N} devices: use pmean, not psum, "
            "because each device has a mean",
        )
        require(
            close(result[2], wanted_loss),
            f"the loss is {wanted_loss:.4f} on one device, "
            f"yours is {np.ravel(result[2])[0]:.4f}: average it too",
        )
    # SGD is linear, so a mean of the devices' models has passed until here.
    clipped = optax.chain(optax.clip_by_global_norm(1), optax.sgd(1))
    clipped_state = clipped.init(params)
    updates, _ = clipped.update(jax.grad(loss)(params, x, y), clipped_state)
    wanted_params = optax.apply_updates(params, updates)
    copies = jax.tree.map(jnp.copy, (params, clipped_state))
    found_params = answer(loss, clipped, mesh)(*copies, *batch)[0]
    require(
        close(found_params, wanted_params),
        "right with SGD, but not if the optimizer clips the gradient: average the "
        "gradients before optimizer.update, not its results",
    )
    require(
        max(row_counts) <= b,
        f"right, but loss was called with {max(row_counts)} rows, and a device has {b} "
        "of them: split x and y by in_specs, and call loss inside the shard_map",
    )
    if "check_vma=False" in jaxpr:
        return (
            "you turned the check off, so nothing would have told you if you had "
            "forgotten the pmean: keep check_vma on, and cast first"
        )
    return None
