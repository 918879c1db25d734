"""Checks of lesson 09's exercises."""

import jax
import jax.numpy as jnp
import numpy as np
from checks import require
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "data"


def random_mesh(random, smallest: int = 2) -> Mesh:
    """A mesh of `smallest` to 8 devices, so that no answer can count on their number."""
    N = int(random.integers(smallest, 9))
    return Mesh(np.array(jax.devices()[:N]), (AXIS,))


def gradient(answer):
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
    cure = "take the mean of the loss, inside jax.grad"
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


def as_global(answer):
    """Arrays `[B, ...]` in the order of the devices, cut over the mesh."""
    random = np.random.default_rng()
    mesh = random_mesh(random)
    N, b = mesh.size, int(random.integers(2, 6))
    batch = {
        "inputs": random.normal(size=(N, b, 5, 4)).astype(np.float32),
        "labels": random.integers(0, 10, (N, b)).astype(np.int32),
    }
    found = answer(batch, mesh)
    require(
        jax.tree.structure(found) == jax.tree.structure(batch),
        "the result must be a tree like the batch: use jax.tree.map for the reshape",
    )
    for name, given in batch.items():
        array, expected = found[name], given.reshape(N * b, *given.shape[2:])
        require(
            array.shape == expected.shape,
            f"{name} of shape {given.shape} must become {expected.shape}, yours is {array.shape}: "
            "the device axis and the batch axis become one",
        )
        require(
            np.array_equal(np.asarray(array), expected),
            f"the rows of {name} are in another order: device 0's rows come first, then device 1's",
        )
        require(
            isinstance(array, jax.Array) and len(array.sharding.device_set) == N,
            f"{name} does not lie on the {N} devices of the mesh: place it with jax.device_put and a NamedSharding",
        )
        require(
            not array.is_fully_replicated,
            f"every device holds all of {name}: PartitionSpec() copies, PartitionSpec('data') cuts",
        )
        wanted = NamedSharding(mesh, PartitionSpec(AXIS))
        require(
            array.sharding.is_equivalent_to(wanted, array.ndim),
            f"{name} must be cut along its first axis, PartitionSpec('data'); yours is {array.sharding}",
        )


def length_ratio(answer):
    """The ratio of the Euclidean lengths of two trees."""
    random = np.random.default_rng()

    def tree():
        shapes = {"kernel": (4, 3), "bias": (3,), "scale": ()}
        return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}

    def length(gradients):
        return np.sqrt(sum(np.square(leaf).sum() for leaf in jax.tree.leaves(gradients)))

    def ratio(gradients, reference):
        found = np.asarray(answer(gradients, reference))
        require(found.shape == (), f"the result must be one number, yours has the shape {found.shape}")
        return float(found)

    reference, factor = tree(), int(random.integers(2, 9))
    longer = jax.tree.map(lambda g: factor * g, reference)
    found = ratio(longer, reference)
    require(
        not np.isclose(found, 1, rtol=1e-3),
        f"gradients {factor} times as long gave 1: a measure of direction (a cosine) does not see the trap",
    )
    require(
        not np.isclose(found, 1 / factor, rtol=1e-3),
        f"gradients {factor} times as long gave {found:.3f}: the reference belongs below the line",
    )
    require(
        not np.isclose(found, factor**2, rtol=1e-3),
        f"gradients {factor} times as long gave {found:.3f}, which is the square: "
        "a length is the root of the sum of squares",
    )
    require(
        np.isclose(found, factor, rtol=1e-3),
        f"gradients {factor} times as long must give {factor}, yours is {found:.3f}",
    )
    others = tree()
    expected, found = length(others) / length(reference), ratio(others, reference)
    require(
        np.isclose(found, expected, rtol=1e-3),
        f"two trees that do not point the same way: expected {expected:.4f}, yours is {found:.4f}. Square "
        "and add up the entries of all arrays first, then take one root for each tree, and divide",
    )
