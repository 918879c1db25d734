"""Checks of lesson 15's exercises."""

import math

import jax
import numpy as np
from jax import P
from jax.sharding import NamedSharding

from pmapdp.collectives import collectives
from pmapdp.lessons.checks import close, mesh_of, refuse, require

SHAPES = {"W1": (12, 8), "W2": (8, 6)}


def split_in_pairs(answer):
    """Accept specs of half of each matrix that need a single all-reduce forward."""
    specs = answer()
    is_pair = isinstance(specs, tuple | list) and not isinstance(specs, P)
    require(
        is_pair and len(specs) == 2 and all(isinstance(spec, P) for spec in specs),
        "return two PartitionSpecs: from jax import P",
    )
    mesh = mesh_of(2, "model")
    shardings = []
    for (name, shape), spec in zip(SHAPES.items(), specs, strict=True):
        try:
            sharding = NamedSharding(mesh, spec)
            part = sharding.shard_shape(shape)
        except Exception:  # JAX has several for specs that don't fit
            require(
                False,
                f"{spec} doesn't fit {name}: the mesh axis is called 'model', and it can "
                "split the matrix along one of its two axes",
            )
        require(
            2 * math.prod(part) == math.prod(shape),
            f"a device holds {part} of {name} {shape}: a half is wanted",
        )
        shardings.append(sharding)
    replicated = NamedSharding(mesh, P())
    forward = jax.jit(
        lambda x, W1, W2: jax.nn.relu(x @ W1) @ W2,
        in_shardings=(replicated, *shardings),
        out_shardings=replicated,
    )
    x = np.ones((4, 12), np.float32)
    matrices = [np.ones(shape, np.float32) for shape in SHAPES.values()]
    program = forward.lower(x, *matrices).compile().as_text()
    communication = {c.kind: c.count for c in collectives(program)}
    require(
        communication == {"all-reduce": 1},
        f"the program needs {communication}: the activation between the two stays "
        "split along H only if W1's columns and W2's rows are split",
    )


def two_layers(answer):
    """Accept the full network on each of four devices, with one collective."""
    N = 4
    random = np.random.default_rng(0)
    x = random.normal(size=(3, 6)).astype(np.float32)
    W1 = random.normal(size=(6, 8)).astype(np.float32)
    W2 = random.normal(size=(8, 5)).astype(np.float32)
    mapped = jax.jit(
        jax.shard_map(
            lambda *arrays: answer(*arrays)[None],
            mesh=mesh_of(N, "model"),
            in_specs=(P(), P(None, "model"), P("model", None)),
            out_specs=P("model"),
            check_vma=False,
        )
    )
    found = np.asarray(mapped(x, W1, W2))
    require(
        found.shape == (N, 3, 5),
        f"a device's result has the shape (3, 5), yours has {found.shape[1:]}",
    )
    hidden = np.maximum(x @ W1, 0)
    wanted = hidden @ W2
    units = 8 // N  # hidden units of a device
    partial_sums = []
    for device in range(N):
        of_device = slice(device * units, (device + 1) * units)
        partial_sums.append(hidden[:, of_device] @ W2[of_device])
    mistakes = {
        "this is a quarter of it: partial sums are added, not averaged": wanted / N,
        "each device has the partial sum over its own hidden units: add them over the "
        "devices": np.stack(partial_sums),
        "this is the sum without the relu": x @ W1 @ W2,
        "the relu came last: it belongs to the hidden units": np.maximum(
            x @ W1 @ W2, 0
        ),
    }
    refuse(found, mistakes)
    require(
        close(found, wanted, atol=1e-3),
        "the result is not relu(x @ W1) @ W2 of the full matrices",
    )
    program = mapped.lower(x, W1, W2).compile().as_text()
    communication = {c.kind: c.count for c in collectives(program)}
    require(
        sum(communication.values()) == 1,
        f"right, but with {communication}: one all-reduce is enough",
    )


def fixed_layer(answer):
    """Accept the layer whose bias is added once, on two and on four devices."""
    random = np.random.default_rng(0)
    h = random.normal(size=(3, 8)).astype(np.float32)
    W2 = random.normal(size=(8, 5)).astype(np.float32)
    bias = random.normal(size=5).astype(np.float32)
    for N in (4, 2):
        mapped = jax.shard_map(
            lambda *arrays: answer(*arrays)[None],
            mesh=mesh_of(N, "model"),
            in_specs=(P(None, "model"), P("model", None), P()),
            out_specs=P("model"),
            check_vma=False,
        )
        found = np.asarray(jax.jit(mapped)(h, W2, bias))
        require(
            found.shape == (N, 3, 5),
            f"a device's result has the shape (3, 5), yours has {found.shape[1:]}",
        )
        mistakes = {
            f"the result has the bias {N} times: each of the {N} devices adds it, and "
            f"then psum adds the {N} results": h @ W2 + N * bias,
            "the bias is missing": h @ W2,
            f"this is h @ W2 divided by {N}, plus the bias: partial sums are added, "
            "not averaged": h @ W2 / N + bias,
        }
        refuse(found, mistakes)
        require(
            close(found, found[0], atol=1e-3),
            "the devices have different results: each has only the sum over its own "
            "hidden units",
        )
        require(
            close(found, h @ W2 + bias, atol=1e-3),
            f"on {N} devices the result is not h @ W2 + bias",
        )
