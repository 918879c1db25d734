"""Checks of lesson 11's exercises: under a mesh of four devices with an Explicit axis."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jax.sharding import NamedSharding

from pmapdp.collectives import collectives
from pmapdp.lessons.checks import require

N = 4


def explicit_mesh():
    """Set four devices along the Explicit axis "data" as the mesh of a `with`."""
    return jax.set_mesh(jax.make_mesh((N,), ("data",), devices=jax.devices()[:N]))


def result_spec(answer):
    """Accept the specs of three results, if nothing was computed."""
    functions = {
        "x.T": lambda x: x.T,
        "x.sum(0)": lambda x: x.sum(0),
        "x.sum(1)": lambda x: x.sum(1),
    }
    was_traced = []

    def watch(function):
        def watched(x):
            was_traced.append(isinstance(x, jax.core.Tracer))
            return function(x)

        return watched

    with explicit_mesh():
        x = jax.device_put(np.ones((8, 6), np.float32), P("data"))
        mesh = jax.typeof(x).sharding.mesh
        for name, function in functions.items():
            spec = answer(watch(function), x)
            require(isinstance(spec, P), f"return a PartitionSpec, yours is {spec}")
            result = jax.eval_shape(function, x)
            wanted = result.sharding
            is_equal = len(spec) <= result.ndim and NamedSharding(
                mesh, spec
            ).is_equivalent_to(wanted, result.ndim)
            require(is_equal, f"the spec of {name} is {wanted.spec}, yours is {spec}")
    require(all(was_traced), "the function was computed: trace it only")


def fixed_gram(answer):
    """Accept x.T @ x, replicated, if no device gets the other devices' rows."""
    D = N  # so that each sharding of the result is possible
    numbers = np.random.default_rng(0).normal(size=(256, D)).astype(np.float32)
    with explicit_mesh():
        x = jax.device_put(numbers, P("data"))
        gram = answer(x)
        require(
            isinstance(gram, jax.Array) and gram.shape == (D, D),
            f"return a jax.Array [D, D], yours has the shape {np.shape(gram)}",
        )
        require(
            np.allclose(gram, numbers.T @ numbers, rtol=1e-4, atol=1e-3),
            "x.T @ x has other values",
        )
        require(
            len(gram.devices()) == N and gram.sharding.is_fully_replicated,
            f"the result has the type {jax.typeof(gram)}: "
            f"it must be replicated on the {N} devices",
        )
        program = jax.jit(answer).lower(x).compile().as_text()
        communication = collectives(program)
        kinds = ", ".join(collective.kind for collective in communication)
        received = sum(collective.bytes for collective in communication)
        require(
            received < numbers.nbytes / N,
            f"right, but by {kinds} of {received} bytes: every device gets the rows "
            "of all others, when it needs only their [D, D] sums",
        )


def normalized_step(answer):
    """Accept a step with the global batch's moments that refuses an unsplit batch."""
    random = np.random.default_rng(0)
    offsets = np.arange(16)[:, None]  # so that the devices' means differ
    x = (random.normal(size=(16, 3)) + offsets).astype(np.float32)
    y = random.normal(size=16).astype(np.float32)
    w = random.normal(size=3).astype(np.float32)
    with explicit_mesh():
        step = jax.jit(answer)
        new_w = step(jnp.asarray(w), *jax.device_put((x, y), P("data")))
        require(new_w.shape == (3,), f"w has the shape (3,), yours has {new_w.shape}")
        z = (x - x.mean(0)) / x.std(0)
        wanted = w - 0.1 * 2 * z.T @ (z @ w - y) / 16
        require(
            np.allclose(new_w, wanted, rtol=1e-3, atol=1e-3),
            f"w is {wanted.round(3)}, yours is {new_w}",
        )
        unsplit_batches = {
            "of NumPy arrays": (x, y),
            "that every device holds whole": jax.device_put((x, y), P()),
        }
        for name, batch in unsplit_batches.items():
            try:
                step(jnp.asarray(w), *batch)
            except AssertionError:
                continue
            require(
                False,
                f"a batch {name} was accepted, although it is not split: "
                "assert jax.typeof(x).sharding.spec[0] == 'data'",
            )
