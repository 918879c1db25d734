"""Checks of lesson 11's exercises."""

import jax
import numpy as np
from checks import require
from jax import P
from jax.sharding import Mesh, NamedSharding

from pmapdp.collectives import collectives


def cut_in_pairs(answer):
    """Half of each matrix on a device, and a single all-reduce in the compiled forward pass."""
    found = answer()
    require(isinstance(found, tuple) and not isinstance(found, P) and len(found) == 2, "return two PartitionSpecs")
    require(all(isinstance(each, P) for each in found), "both are PartitionSpecs: from jax import P")
    mesh = Mesh(np.array(jax.devices()[:2]), ("model",))
    sizes = {"W1": (12, 8), "W2": (8, 6)}
    try:
        places = [NamedSharding(mesh, spec) for spec in found]
        parts = [place.shard_shape(shape) for place, shape in zip(places, sizes.values(), strict=True)]
    except ValueError as error:
        require(
            False, f"the mesh axis is called 'model', and each matrix has two axes ({str(error).split(chr(10))[0]})"
        )
    for name, part in zip(sizes, parts, strict=True):
        whole = int(np.prod(sizes[name]))
        require(2 * int(np.prod(part)) == whole, f"a device holds {part} of {name} {sizes[name]}: a half is wanted")
    arguments = [np.ones((4, 12), np.float32), *(np.ones(shape, np.float32) for shape in sizes.values())]
    replicated = NamedSharding(mesh, P())
    placed = [jax.device_put(x, place) for x, place in zip(arguments, (replicated, *places), strict=True)]
    forward = jax.jit(lambda x, w1, w2: jax.nn.relu(x @ w1) @ w2, out_shardings=replicated)
    talk = [(each.kind, each.count) for each in collectives(forward.lower(*placed).compile().as_text())]
    require(
        found == (P(None, "model"), P("model", None)) or talk == [("all-reduce", 1)],
        f"the program needs {talk}: the activation between the two is cut along H only if W1's columns and W2's rows are",
    )
    require(found[0][0] is None, "W1's rows are the features of x, which every device has whole: cut its columns")


def product_of_parts(answer):
    """The product of the whole matrices, on each of four devices."""
    random = np.random.default_rng()
    x, w = random.normal(size=(3, 8)).astype(np.float32), random.normal(size=(8, 5)).astype(np.float32)
    mesh = Mesh(np.array(jax.devices()[:4]), ("feature",))
    mapped = jax.shard_map(
        lambda x, w: answer(x, w)[None],
        mesh=mesh,
        in_specs=(P(None, "feature"), P("feature", None)),
        out_specs=P("feature"),
        check_vma=False,
    )
    found = np.asarray(jax.jit(mapped)(x, w))
    require(found.shape == (4, 3, 5), f"a device's result has the shape (3, 5), yours has {found.shape[1:]}")
    wanted = x @ w
    require(
        not np.allclose(found, wanted / 4, atol=1e-4), "this is a quarter of it: parts are to be added up, not averaged"
    )
    parts = np.stack([x[:, 2 * d : 2 * d + 2] @ w[2 * d : 2 * d + 2] for d in range(4)])
    require(
        not np.allclose(found, parts, atol=1e-4), "each device has only the product of its own features: add them up"
    )
    require(np.allclose(found, wanted, atol=1e-4), "the result is not x @ w of the whole matrices")


def part_shape(answer):
    """As NamedSharding has it."""
    sizes = {"data": 4, "model": 2}
    mesh = Mesh(np.array(jax.devices()[:8]).reshape(4, 2), tuple(sizes))
    for shape, names in (((16, 6), ("data", None)), ((8, 10), (None, "model")), ((4, 2, 3), ("data", "model", None))):
        wanted, found = NamedSharding(mesh, P(*names)).shard_shape(shape), answer(shape, names, sizes)
        require(isinstance(found, tuple), "return a tuple")
        require(len(found) == len(shape), f"{shape} has {len(shape)} axes, and so has its part; yours has {len(found)}")
        require(
            all(isinstance(size, int) for size in found), f"sizes are whole numbers: divide with //, yours is {found}"
        )
        require(found == wanted, f"a part of {shape} cut along {names} has the shape {wanted}, yours is {found}")
