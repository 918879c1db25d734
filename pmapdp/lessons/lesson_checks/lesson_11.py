"""Checks of lesson 11's exercises: under a mesh of four devices with an Explicit axis."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import P
from jax.sharding import NamedSharding

from pmapdp.compare.collectives import collectives
from pmapdp.lessons.checks import require

N = 4


def explicit_mesh():
    """Four devices along the Explicit axis "data", as a context."""
    return jax.set_mesh(jax.make_mesh((N,), ("data",), devices=jax.devices()[:N]))


def result_spec(answer):
    """The specs of three results, and nothing computed."""
    with explicit_mesh():
        x = jax.device_put(np.ones((8, 6), np.float32), P("data"))
        traced = []
        for name, function, wanted in (
            ("x.T", lambda x: x.T, P(None, "data")),
            ("x.sum(0)", lambda x: x.sum(0), P(None)),
            ("x.sum(1)", lambda x: x.sum(1), P("data")),
        ):
            found = answer(
                lambda x, f=function: (
                    traced.append(isinstance(x, jax.core.Tracer)) or f(x)
                ),
                x,
            )
            require(isinstance(found, P), f"return a PartitionSpec, yours is {found}")
            axes, mesh = jax.eval_shape(function, x).ndim, jax.typeof(x).sharding.mesh
            mine, right = (NamedSharding(mesh, spec) for spec in (found, wanted))
            same = len(found) <= axes and mine.is_equivalent_to(right, axes)
            require(same, f"the spec of {name} is {wanted}, yours is {found}")
    require(all(traced), "the function was computed: trace it only")


def fixed_gram(answer):
    """x.T @ x, replicated."""
    with explicit_mesh():
        numbers = np.random.default_rng().normal(size=(256, 3)).astype(np.float32)
        x = jax.device_put(numbers, P("data"))
        found = answer(x)
        require(
            isinstance(found, jax.Array) and found.shape == (3, 3),
            "return a jax.Array [D, D]",
        )
        require(
            np.allclose(found, numbers.T @ numbers, rtol=1e-4, atol=1e-3),
            "x.T @ x has other values",
        )
        everywhere = len(found.devices()) == N and found.sharding.is_fully_replicated
        require(
            everywhere,
            f"the result has the type {jax.typeof(found)}: it must be replicated on the {N} devices",
        )
        received = collectives(jax.jit(answer).lower(x).compile().as_text())
        kinds, total = (
            ", ".join(each.kind for each in received),
            sum(each.bytes for each in received),
        )
        rows = "every device gets the rows of all others, when it needs only their [D, D] sums"
        require(
            total < numbers.nbytes / N,
            f"right, but by {kinds} of {total} bytes: {rows}",
        )


def normalized_step(answer):
    """One step with the moments of the global batch; an unsplit batch is refused."""
    random = np.random.default_rng()
    x = (random.normal(size=(16, 3)) + np.arange(16)[:, None]).astype(np.float32)
    y, w = (
        random.normal(size=16).astype(np.float32),
        random.normal(size=3).astype(np.float32),
    )
    with explicit_mesh():
        found = jax.jit(answer)(jnp.asarray(w), *jax.device_put((x, y), P("data")))
        require(found.shape == (3,), f"w has the shape (3,), yours has {found.shape}")
        z = (x - x.mean(0)) / x.std(0)
        wanted = w - 0.1 * 2 * z.T @ (z @ w - y) / 16
        require(
            np.allclose(found, wanted, rtol=1e-3, atol=1e-3),
            f"w is {wanted.round(3)}, yours is {found}",
        )
        try:
            jax.jit(answer)(jnp.asarray(w), x, y)
        except AssertionError:
            return
        require(
            False,
            "a batch that is not split was accepted: assert jax.typeof(x).sharding.spec[0] == 'data'",
        )
