"""Checks of lesson 12's exercises: on a mesh of four devices."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from pmapdp.compare.collectives import collectives
from pmapdp.lessons.checks import close, mesh_of, refuse, require

N = 4


def unstacked(answer):
    """One copy of every array, on every device."""
    random, mesh = np.random.default_rng(), mesh_of(N, "batch")
    tree = {"kernel": random.normal(size=(5, 3)).astype(np.float32), "step": np.int32(random.integers(1, 9))}
    found = answer(jax.tree.map(lambda x: np.stack([x] * N), tree), mesh)
    require(jax.tree.structure(found) == jax.tree.structure(tree), "return a tree like the given one")
    for name, wanted in tree.items():
        got, shape = found[name], np.shape(wanted)
        axis = f"{name} still has the shape {np.shape(got)}; without the device axis it is {shape}"
        require(np.shape(got) == shape, axis)
        require(isinstance(got, jax.Array), f"{name} is on the host: use jax.device_put")
        everywhere = len(got.sharding.device_set) == N and got.sharding.is_fully_replicated
        copy = f"{name} must have a copy on each of the {N} devices: NamedSharding(mesh, PartitionSpec())"
        require(everywhere, copy)
        require(np.array_equal(got, wanted), f"the values of {name} have changed")


def old_step(w, x, y):
    """The step of the exercise, with pmap."""

    def step(w, x, y):
        def loss(w):
            return jnp.square(x @ w - y).sum() / (len(y) * lax.psum(1, "batch"))

        value, gradient = jax.value_and_grad(loss)(w)
        value, gradient = lax.psum((value, gradient), "batch")
        return w - 0.1 * gradient, value

    mapped = jax.pmap(step, axis_name="batch", in_axes=(None, 0, 0), out_axes=None, devices=jax.devices()[:N])
    return mapped(w, x.reshape(N, -1, x.shape[1]), y.reshape(N, -1))


def ported(answer):
    """Equal to the old step over three updates, with an all-reduce, and a share of the work on each device."""
    random, mesh = np.random.default_rng(), mesh_of(N, "batch")
    w, x = random.normal(size=3).astype(np.float32), random.normal(size=(256, 3)).astype(np.float32)
    y = random.normal(size=256).astype(np.float32)
    step = answer(mesh)
    require(hasattr(step, "lower"), "return a compiled function: end with return jax.jit(...)")
    split, replicated = NamedSharding(mesh, PartitionSpec("batch")), NamedSharding(mesh, PartitionSpec())
    placed = jax.device_put(w, replicated), *jax.device_put((x, y), split)
    program = step.lower(*placed).compile()
    new, old = placed[0], w
    for update in (1, 2, 3):
        result = step(new, *placed[1:])
        require(isinstance(result, tuple | list) and len(result) == 2, "the step returns (w, loss)")
        before = np.asarray(new)
        (new, value), (wanted, wanted_value) = result, old_step(old, x, y)
        require(np.shape(new) == (3,), f"w has the shape (3,) again, without a device axis; yours has {np.shape(new)}")
        copies = [np.asarray(shard.data) for shard in new.addressable_shards]
        same = all(close(copy, copies[0], atol=1e-6) for copy in copies)
        require(same, "the devices have different w: each followed the gradient of its own rows")
        ratio = np.linalg.norm(np.asarray(new) - before) / np.linalg.norm(np.asarray(wanted) - np.asarray(old))
        require(close(new, wanted), f"update {update} is {ratio:.3f} times as long as with the old step")
        losses = f"the loss is {float(wanted_value):.4f}, yours is {float(np.ravel(value)[0]):.4f}"
        require(close(value, wanted_value), losses)
        old = wanted
    kinds = [each.kind for each in collectives(program.as_text())]
    require("all-reduce" in kinds, f"right, but nobody adds up over the devices: the collectives are {kinds}")
    require("all-gather" not in kinds, "right, but every device gathers the whole batch: split x and y")


def corrected_variance(answer):
    """The variance of all rows, on devices with different means."""
    x = np.random.default_rng().normal(size=(N, 6, 3)) + 3 * np.arange(N)[:, None, None]
    x = x.astype(np.float32).reshape(-1, 3)
    specs = {"in_specs": PartitionSpec("batch"), "out_specs": PartitionSpec("batch"), "check_vma": False}
    mapped = jax.shard_map(lambda x: answer(x)[None], mesh=mesh_of(N, "batch"), **specs)
    found = np.asarray(jax.jit(mapped)(x))
    require(found.shape == (N, 3), f"return [D] = [3], yours has the shape {found.shape[1:]}")
    require(close(found, found[0], atol=1e-3), "the devices have different variances: average over 'batch'")
    planted = "this is the planted mistake: the mean of the devices' variances ignores that their means differ"
    refuse(found[0], {planted: x.reshape(N, 6, 3).var(1).mean(0)})
    require(close(found[0], x.var(0)), f"the variance is {x.var(0)}, yours is {found[0]}")
