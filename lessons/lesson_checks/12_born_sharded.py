"""Checks of lesson 12's exercises: on a mesh of four devices."""

import jax
import jax.numpy as jnp
import numpy as np
from checks import require
from jax import P
from jax.sharding import Mesh, NamedSharding

N = 4


def mesh_of_four():
    """Four devices along the axis "data"."""
    return Mesh(np.array(jax.devices()[:N]), ("data",))


def on_devices(answer, *arguments, whole):
    """What each of the four devices returns, `[N, ...]`; the arguments named in `whole` are not cut."""
    specs = tuple(P() if number in whole else P("data") for number in range(len(arguments)))
    mapped = jax.shard_map(
        lambda *parts: jnp.asarray(answer(*parts))[None],
        mesh=mesh_of_four(),
        in_specs=specs,
        out_specs=P("data"),
        check_vma=False,
    )
    return np.asarray(jax.jit(mapped)(*arguments))


def born_in_place(answer):
    """Right numbers and places, and `build` was traced, not computed."""
    traced = []
    seed = int(np.random.default_rng().integers(1000))

    def build():
        x = jax.random.normal(jax.random.key(seed), (8, 6))
        traced.append(isinstance(x, jax.core.Tracer))
        return x

    place = NamedSharding(mesh_of_four(), P("data"))
    found = answer(build, place)
    require(isinstance(found, jax.Array) and found.shape == (8, 6), "return the array that build() makes, [8, 6]")
    require(bool(traced), "build was not called")
    require(
        found.sharding.is_equivalent_to(place, 2),
        f"it lies as {found.sharding}, not as the sharding that was asked for",
    )
    require(all(traced), "build() ran outside of jit: its result was whole on one device before it was cut")
    require(np.array_equal(found, build()), "the numbers are not those of build()")


def update_in_parts(answer):
    """The device's part of the update with the sum of all gradients."""
    random = np.random.default_rng()
    w, g = random.normal(size=8).astype(np.float32), random.normal(size=(N, 8)).astype(np.float32)
    found = on_devices(answer, w, g.reshape(-1), whole={0})
    require(found.shape != (N, 8), "this is [D]: return this device's part only, [D / N]")
    require(found.shape == (N, 2), f"a device returns [D / N] = [2], yours returns {list(found.shape[1:])}")
    wanted = (w - 0.1 * g.sum(0)).reshape(N, 2)
    require(
        not np.allclose(found, (w - 0.1 * g.mean(0)).reshape(N, 2), atol=1e-5),
        "gradients are to be summed, not averaged",
    )
    own = np.stack([(w - 0.1 * g[d])[2 * d : 2 * d + 2] for d in range(N)])
    require(not np.allclose(found, own, atol=1e-5), "only this device's gradient went in: sum over all devices")
    first = w[:2] - 0.1 * g.sum(0).reshape(N, 2)
    require(not np.allclose(found, first, atol=1e-5), "every device took the first part of w: use lax.axis_index")
    require(np.allclose(found, wanted, atol=1e-5), "the parts are not those of w - 0.1 * (sum of the gradients)")


def whole_norm(answer):
    """One length, on all devices."""
    g = np.random.default_rng().uniform(1, 2, size=16).astype(np.float32)
    found = on_devices(answer, g, whole=())
    require(found.shape == (N,), f"return a number, yours has the shape {found.shape[1:]}")
    lengths = np.linalg.norm(g.reshape(N, 4), axis=1)
    require(
        not np.allclose(found, lengths, atol=1e-4), "this is the length of this device's part: sum over the devices"
    )
    require(not np.allclose(found, lengths.sum(), atol=1e-4), "lengths do not add up, their squares do")
    wanted = np.linalg.norm(g)
    require(not np.allclose(found, wanted**2, atol=1e-3), "this is the square of the length: take the root")
    require(np.allclose(found, wanted, atol=1e-4), f"the length is {wanted:.4f}, yours are {found}")
