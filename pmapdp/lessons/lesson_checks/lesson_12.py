"""Checks of lesson 12's exercises: on a mesh of four devices."""

import jax
import numpy as np
from jax import P

from pmapdp.collectives import collectives
from pmapdp.lessons.checks import close, mesh_of, refuse, require

N = 4
MOST_WORK = 0.5  # of one device's; a quarter each, and some work that isn't split


class HostStack(np.ma.MaskedArray):
    """Copies on the host. An index gives a plain array, and JAX refuses all of them."""

    def __getitem__(self, index):
        return np.asarray(super().__getitem__(index))


def drop_device_axis(answer):
    """Accept copy 0 of every array, on every device, indexed on the host."""
    mesh = mesh_of(N, "batch")
    kernel = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    tree = {"kernel": kernel, "step": np.int32(7)}
    # Copy d has d added, so that a mean and the last copy are seen.
    stacks = {
        "kernel": np.stack([kernel + d for d in range(N)]),
        "step": np.arange(7, 7 + N, dtype=np.int32),
    }
    dropped = answer(stacks, mesh)
    require(
        jax.tree.structure(dropped) == jax.tree.structure(tree),
        "return a tree like the given one",
    )
    for name, wanted in tree.items():
        array = dropped[name]
        require(
            np.shape(array) == np.shape(wanted),
            f"{name} has the shape {np.shape(array)}; one copy has {np.shape(wanted)}",
        )
        is_on_mesh = isinstance(array, jax.Array) and len(array.devices()) == N
        require(
            is_on_mesh and array.sharding.is_fully_replicated,
            f"{name} must have a copy on each of the {N} devices: "
            "NamedSharding(mesh, PartitionSpec())",
        )
        asked = "and copy 0 is asked for"
        stack = stacks[name]
        mistakes = {
            f"{name} is the mean of the {N} copies, {asked}": stack.mean(0),
            f"{name} is the sum of the {N} copies, {asked}": stack.sum(0),
            f"{name} is the last of the {N} copies, {asked}": stack[-1],
        }
        refuse(array, mistakes)
        require(np.array_equal(array, wanted), f"the values of {name} have changed")
        require(
            array.dtype == wanted.dtype,
            f"{name} was {wanted.dtype} and is {array.dtype} now",
        )
    host_stacks = jax.tree.map(lambda stack: stack.view(HostStack), stacks)
    try:
        answer(host_stacks, mesh)
    except ValueError:
        require(
            False,
            f"right, but all {N} copies went onto the devices before you took one: "
            "index on the host",
        )


def old_step(w, x, y):
    """Compute the result of the exercise's step by hand: (w, loss)."""
    error = x @ w - y
    return w - 0.2 * x.T @ error / len(y), (error**2).mean()


def is_compiled(step, w, x, y):
    """Return True if a step, or the function that it calls, has been compiled."""
    if hasattr(step, "lower"):
        return True
    # A plain function may place its arguments and then call a compiled one.
    if not callable(step):
        return False
    operations = {
        equation.primitive.name for equation in jax.make_jaxpr(step)(w, x, y).eqns
    }
    return operations.isdisjoint({"dot_general", "shard_map"})


def make_step(answer):
    """Accept a step that makes the old step's three updates, from host arrays, split."""
    random = np.random.default_rng(0)
    w = random.normal(size=3).astype(np.float32)
    x = random.normal(size=(256, 3)).astype(np.float32)
    y = random.normal(size=256).astype(np.float32)
    step = answer(mesh_of(N, "batch"))
    try:
        require(
            is_compiled(step, w, x, y),
            "return a compiled function: end with return jax.jit(...)",
        )
        compiled = step if hasattr(step, "lower") else jax.jit(step)
        program = compiled.lower(w, x, y).compile()
    except ValueError as error:
        reason = str(error).splitlines()[0]
        require(False, f"JAX refuses the arguments w [3], x [256, 3], y: {reason}")
    found = w
    wanted = w
    for update in (1, 2, 3):
        result = step(found, x, y)
        require(
            isinstance(result, tuple | list) and len(result) == 2,
            "the step returns (w, loss)",
        )
        before = np.asarray(found)
        found, loss = result
        wanted_before = wanted
        wanted, wanted_loss = old_step(wanted, x, y)
        require(
            np.shape(found) == (3,),
            "w has the shape (3,) again, without a device axis; "
            f"yours has {np.shape(found)}",
        )
        copies = [np.asarray(shard.data) for shard in found.addressable_shards]
        require(
            all(close(copy, copies[0], atol=1e-6) for copy in copies),
            "the devices have different w: each followed the gradient of its own rows",
        )
        length = np.linalg.norm(np.asarray(found) - before)
        ratio = length / np.linalg.norm(wanted - wanted_before)
        require(
            abs(ratio - N) > 1e-3,
            f"update {update} is {ratio:.3f} times as long as with the old step, so "
            f"jax.grad has summed over the {N} devices: this is lesson 10's trap",
        )
        require(
            abs(ratio - len(y)) > 1e-3 * len(y),
            f"update {update} is {ratio:.3f} times as long as with the old step, and the "
            f"batch has {len(y)} rows: the loss is their mean, not their sum",
        )
        require(
            close(found, wanted),
            f"update {update} is {ratio:.3f} times as long as with the old step",
        )
        require(
            close(loss, wanted_loss),
            f"the loss is {float(wanted_loss):.4f}, "
            f"yours is {float(np.ravel(loss)[0]):.4f}",
        )
    one_device = jax.jit(old_step).lower(w, x, y).compile()
    require_shared_work(program, one_device, found, loss)


def require_shared_work(program, one_device, w, loss):
    """Reject a right step whose devices repeat each other's work.

    Args:
        program: the answer's compiled step.
        one_device: the step compiled for one device.
        w, loss: the step's results, which must be replicated.
    """
    for name, array in {"w": w, "the loss": loss}.items():
        require(
            len(array.devices()) == N and array.sharding.is_fully_replicated,
            f"the numbers are right, but {name} isn't replicated over the {N} devices",
        )
    share = program.cost_analysis()["flops"] / one_device.cost_analysis()["flops"]
    require(
        share < MOST_WORK,
        f"right, but each of the {N} devices does {share:.2f} of the work of one "
        "device alone, from host arrays: split x and y",
    )
    kinds = [collective.kind for collective in collectives(program.as_text())]
    require(
        "all-reduce" in kinds,
        f"right, but nobody adds up over the devices: the collectives are {kinds}",
    )


def corrected_variance(answer):
    """Accept the variance of all rows, on devices with different means."""
    offsets = 3 * np.arange(N)[:, None, None]
    parts = np.random.default_rng(0).normal(size=(N, 6, 3)) + offsets
    x = parts.astype(np.float32).reshape(-1, 3)
    mapped = jax.shard_map(
        lambda x: answer(x)[None],
        mesh=mesh_of(N, "batch"),
        in_specs=P("batch"),
        out_specs=P("batch"),
        check_vma=False,
    )
    found = np.asarray(jax.jit(mapped)(x))
    require(
        found.shape == (N, 3),
        f"return [D] = [3], yours has the shape {found.shape[1:]}",
    )
    require(
        close(found, found[0], atol=1e-3),
        "the devices have different variances: average over 'batch'",
    )
    mistakes = {
        "this is the planted mistake: the mean of the devices' variances ignores that "
        "their means differ": parts.var(1).mean(0),
        f"this is the variance {N} times: psum adds, pmean averages": N * x.var(0),
        "this divides by the number of rows less one": x.var(0, ddof=1),
    }
    refuse(found[0], mistakes)
    require(
        close(found[0], x.var(0)),
        f"the variance is {x.var(0)}, yours is {found[0]}",
    )
