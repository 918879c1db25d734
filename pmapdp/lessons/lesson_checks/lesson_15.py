"""Checks of lesson 15's exercises."""

import jax
import numpy as np
from jax import P
from jax.sharding import NamedSharding

from pmapdp.compare.collectives import collectives
from pmapdp.lessons.checks import close, mesh_of, refuse, require


def split_in_pairs(answer):
    """Half of each matrix on a device, and a single all-reduce in the compiled forward pass."""
    found = answer()
    pair = (
        isinstance(found, tuple | list) and not isinstance(found, P) and len(found) == 2
    )
    require(
        pair and all(isinstance(each, P) for each in found),
        "return two PartitionSpecs: from jax import P",
    )
    mesh = mesh_of(2, "model")
    sizes = {"W1": (12, 8), "W2": (8, 6)}
    try:
        places = [NamedSharding(mesh, spec) for spec in found]
        parts = [
            place.shard_shape(shape)
            for place, shape in zip(places, sizes.values(), strict=True)
        ]
    except ValueError:
        require(False, "the mesh axis is called 'model', and each matrix has two axes")
    for name, part in zip(sizes, parts, strict=True):
        whole = int(np.prod(sizes[name]))
        require(
            2 * int(np.prod(part)) == whole,
            f"a device holds {part} of {name} {sizes[name]}: a half is wanted",
        )
    arguments = [
        np.ones((4, 12), np.float32),
        *(np.ones(shape, np.float32) for shape in sizes.values()),
    ]
    replicated = NamedSharding(mesh, P())
    placed = [
        jax.device_put(x, place)
        for x, place in zip(arguments, (replicated, *places), strict=True)
    ]
    forward = jax.jit(
        lambda x, w1, w2: jax.nn.relu(x @ w1) @ w2, out_shardings=replicated
    )
    found_in_it = [
        (each.kind, each.count)
        for each in collectives(forward.lower(*placed).compile().as_text())
    ]
    cure = "the activation between the two stays split along H only if W1's columns and W2's rows are split"
    require(
        found_in_it == [("all-reduce", 1)], f"the program needs {found_in_it}: {cure}"
    )


def two_layers(answer):
    """The network of the full matrices on each of four devices, with one collective."""
    random = np.random.default_rng()
    x, w1, w2 = (
        random.normal(size=shape).astype(np.float32)
        for shape in ((3, 6), (6, 8), (8, 5))
    )
    mesh = mesh_of(4, "model")
    specs = {
        "in_specs": (P(), P(None, "model"), P("model", None)),
        "out_specs": P("model"),
        "check_vma": False,
    }
    mapped = jax.jit(
        jax.shard_map(lambda *given: answer(*given)[None], mesh=mesh, **specs)
    )
    found = np.asarray(mapped(x, w1, w2))
    require(
        found.shape == (4, 3, 5),
        f"a device's result has the shape (3, 5), yours has {found.shape[1:]}",
    )
    wanted = np.maximum(x @ w1, 0) @ w2
    partial = np.stack(
        [
            np.maximum(x @ w1[:, 2 * d : 2 * d + 2], 0) @ w2[2 * d : 2 * d + 2]
            for d in range(4)
        ]
    )
    known = {
        "this is a quarter of it: partial sums are added, not averaged": wanted / 4,
        "each device has the partial sum over its own hidden units: add them over the devices": partial,
    }
    refuse(found, known)
    require(
        close(found, wanted, atol=1e-3),
        "the result is not relu(x @ W1) @ W2 of the full matrices",
    )
    kinds = {
        each.kind: each.count
        for each in collectives(mapped.lower(x, w1, w2).compile().as_text())
    }
    require(
        sum(kinds.values()) == 1, f"right, but with {kinds}: one all-reduce is enough"
    )


def fixed_layer(answer):
    """The layer with its bias on each of two and of four devices; the bias is added once."""
    random = np.random.default_rng()
    h, w2, bias = (
        random.normal(size=shape).astype(np.float32) for shape in ((3, 8), (8, 5), (5,))
    )
    specs = {
        "in_specs": (P(None, "model"), P("model", None), P()),
        "out_specs": P("model"),
        "check_vma": False,
    }
    for N in (4, 2):
        mesh = mesh_of(N, "model")
        found = np.asarray(
            jax.jit(
                jax.shard_map(lambda *given: answer(*given)[None], mesh=mesh, **specs)
            )(h, w2, bias)
        )
        require(
            found.shape == (N, 3, 5),
            f"a device's result has the shape (3, 5), yours has {found.shape[1:]}",
        )
        many = f"the result has the bias {N} times: each of the {N} devices adds it, and then psum adds the {N} results"
        refuse(found, {many: h @ w2 + N * bias, "the bias is missing": h @ w2})
        own = "the devices have different results: each has only the sum over its own hidden units"
        require(close(found, found[0], atol=1e-3), own)
        require(
            close(found, h @ w2 + bias, atol=1e-3),
            f"on {N} devices the result is not h @ W2 + bias",
        )
