"""Checks of lesson 12's exercises: on a mesh of four devices."""

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pmapdp.compare.collectives import collectives
from pmapdp.lessons.checks import close, mesh_of, refuse, require

N = 4


class Stack(np.ma.MaskedArray):
    """Copies on the host. An index gives a plain array, but JAX refuses to put all of them on devices."""

    def __getitem__(self, index):
        return np.asarray(super().__getitem__(index))


def drop_device_axis(answer):
    """Copy 0 of every array, on every device, indexed on the host."""
    random, mesh = np.random.default_rng(), mesh_of(N, "batch")
    tree = {
        "kernel": random.normal(size=(5, 3)).astype(np.float32),
        "step": np.int32(random.integers(1, 9)),
    }
    stacks = jax.tree.map(lambda x: np.stack([x] * N), tree)
    found = answer(stacks, mesh)
    require(
        jax.tree.structure(found) == jax.tree.structure(tree),
        "return a tree like the given one",
    )
    for name, wanted in tree.items():
        got, shape = found[name], np.shape(wanted)
        require(
            np.shape(got) == shape,
            f"{name} still has the shape {np.shape(got)}; one copy has {shape}",
        )
        on_all = (
            isinstance(got, jax.Array)
            and len(got.devices()) == N
            and got.sharding.is_fully_replicated
        )
        require(
            on_all,
            f"{name} must have a copy on each of the {N} devices: NamedSharding(mesh, PartitionSpec())",
        )
        require(np.array_equal(got, wanted), f"the values of {name} have changed")
    try:
        answer(jax.tree.map(lambda x: x.view(Stack), stacks), mesh)
    except ValueError:
        require(
            False,
            f"right, but all {N} copies went onto the devices before you took one: index on the host",
        )


def old_step(w, x, y):
    """The result of the exercise's step, by hand."""
    error = x @ w - y
    return w - 0.2 * x.T @ error / len(y), np.square(error).mean()


def make_step(answer):
    """Equal to the old step over three updates, with an all-reduce, and a share of the work on each device."""
    random, mesh = np.random.default_rng(), mesh_of(N, "batch")
    w, x = (
        random.normal(size=3).astype(np.float32),
        random.normal(size=(256, 3)).astype(np.float32),
    )
    y = random.normal(size=256).astype(np.float32)
    step = answer(mesh)
    require(
        hasattr(step, "lower"),
        "return a compiled function: end with return jax.jit(...)",
    )
    split, replicated = (
        NamedSharding(mesh, PartitionSpec("batch")),
        NamedSharding(mesh, PartitionSpec()),
    )
    placed = jax.device_put(w, replicated), *jax.device_put((x, y), split)
    program = step.lower(*placed).compile()
    new, old = placed[0], w
    for update in (1, 2, 3):
        result = step(new, *placed[1:])
        require(
            isinstance(result, tuple | list) and len(result) == 2,
            "the step returns (w, loss)",
        )
        before = np.asarray(new)
        (new, value), (wanted, wanted_value) = result, old_step(old, x, y)
        require(
            np.shape(new) == (3,),
            f"w has the shape (3,) again, without a device axis; yours has {np.shape(new)}",
        )
        copies = [np.asarray(shard.data) for shard in new.addressable_shards]
        same = all(close(copy, copies[0], atol=1e-6) for copy in copies)
        require(
            same,
            "the devices have different w: each followed the gradient of its own rows",
        )
        ratio = np.linalg.norm(np.asarray(new) - before) / np.linalg.norm(
            np.asarray(wanted) - np.asarray(old)
        )
        require(
            close(new, wanted),
            f"update {update} is {ratio:.3f} times as long as with the old step",
        )
        losses = f"the loss is {float(wanted_value):.4f}, yours is {float(np.ravel(value)[0]):.4f}"
        require(close(value, wanted_value), losses)
        old = wanted
    kinds = [each.kind for each in collectives(program.as_text())]
    require(
        "all-reduce" in kinds,
        f"right, but nobody adds up over the devices: the collectives are {kinds}",
    )
    require(
        "all-gather" not in kinds,
        "right, but every device gathers the whole batch: split x and y",
    )


def corrected_variance(answer):
    """The variance of all rows, on devices with different means."""
    x = np.random.default_rng().normal(size=(N, 6, 3)) + 3 * np.arange(N)[:, None, None]
    x = x.astype(np.float32).reshape(-1, 3)
    specs = {
        "in_specs": PartitionSpec("batch"),
        "out_specs": PartitionSpec("batch"),
        "check_vma": False,
    }
    mapped = jax.shard_map(lambda x: answer(x)[None], mesh=mesh_of(N, "batch"), **specs)
    found = np.asarray(jax.jit(mapped)(x))
    require(
        found.shape == (N, 3),
        f"return [D] = [3], yours has the shape {found.shape[1:]}",
    )
    require(
        close(found, found[0], atol=1e-3),
        "the devices have different variances: average over 'batch'",
    )
    planted = "this is the planted mistake: the mean of the devices' variances ignores that their means differ"
    refuse(found[0], {planted: x.reshape(N, 6, 3).var(1).mean(0)})
    require(
        close(found[0], x.var(0)), f"the variance is {x.var(0)}, yours is {found[0]}"
    )
