"""Checks of lesson 16's exercises: on a mesh of four devices."""

import jax
import numpy as np
from jax import P
from jax.sharding import NamedSharding

from pmapdp.compare.collectives import collectives
from pmapdp.lessons.checks import close, mesh_of, refuse, require

N = 4


def build_sharded(answer):
    """Right numbers and places, and `build` was traced, not computed."""
    traced = []
    seed = int(np.random.default_rng().integers(1000))

    def build():
        x = jax.random.normal(jax.random.key(seed), (8, 6))
        traced.append(isinstance(x, jax.core.Tracer))
        return x

    place = NamedSharding(mesh_of(N), P("data"))
    found = answer(build, place)
    require(
        isinstance(found, jax.Array) and found.shape == (8, 6),
        "return the array that build() makes, [8, 6]",
    )
    asked = f"its sharding is {found.sharding}, not the one that was asked for"
    require(found.sharding.is_equivalent_to(place, 2), asked)
    require(
        all(traced),
        "build() ran outside of jit: one device held all of its result before it was split",
    )
    require(np.array_equal(found, build()), "build() makes other numbers")


def zero_step(answer):
    """Two updates of weights and momentum, equal to one device, by a reduce-scatter and an all-gather."""
    random = np.random.default_rng()
    w, m = (
        random.normal(size=8).astype(np.float32),
        random.normal(size=8).astype(np.float32),
    )
    specs = {
        "in_specs": (P(), P("data"), P("data")),
        "out_specs": (P("data"), P("data")),
        "check_vma": False,
    }

    def rows(w, g, m):
        found = answer(w, g, m)
        require(
            isinstance(found, tuple | list) and len(found) == 2,
            "return two arrays: (w, m)",
        )
        require(
            found[0].shape == (8,),
            f"w is [D] = [8] again on every device, yours has the shape {found[0].shape}",
        )
        require(
            found[1].shape == (2,),
            f"m stays this device's shard, [D / N] = [2], yours is {found[1].shape}",
        )
        return found

    mapped = jax.jit(jax.shard_map(rows, mesh=mesh_of(N), **specs))
    for _ in range(2):
        g = random.normal(size=(N, 8)).astype(np.float32)
        got_w, got_m = map(np.asarray, mapped(w, g.reshape(-1), m))
        own = np.concatenate([g[d].reshape(N, 2)[d] for d in range(N)])
        known = {
            "the gradient is the mean over devices: divide by N": 0.9 * m + g.sum(0),
            "only this device's gradient went in: psum_scatter": 0.9 * m + own,
        }
        refuse(got_m, known)
        wanted_m = 0.9 * m + g.mean(0)
        require(close(got_m, wanted_m), "m is not 0.9 * m + the mean of the gradients")
        got_w = got_w.reshape(N, 8)
        require(
            close(got_w, got_w[0], atol=1e-6),
            "the devices have different weights: all_gather the shards",
        )
        first = (w[:2] - 0.1 * wanted_m.reshape(N, 2)).reshape(-1)
        refuse(
            got_w[0], {"every device took the first shard of w: use axis_index": first}
        )
        w, m = w - 0.1 * wanted_m, wanted_m
        require(close(got_w[0], w), "w is not w - 0.1 * m")
    kinds = [
        each.kind
        for each in collectives(mapped.lower(w, g.reshape(-1), m).compile().as_text())
    ]
    require(
        "all-reduce" not in kinds,
        f"right, but with {kinds}: a reduce-scatter is half of an all-reduce",
    )


def fixed_clip(answer):
    """The full gradient clipped, in its shards; a short one is left alone."""
    specs = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": False}
    mapped = jax.jit(jax.shard_map(answer, mesh=mesh_of(N), **specs))
    for length in (5.0, 0.5):
        g = np.random.default_rng().uniform(1, 2, size=16)
        g = (g * length / np.linalg.norm(g)).astype(np.float32)
        found = np.asarray(mapped(g))
        require(found.shape == (16,), "return a shard of the same shape as g")
        wanted, got = min(1.0, length), float(np.linalg.norm(found))
        must = f"a gradient of length {length} must get the length {wanted:.3f}, yours has {got:.3f}"
        squares = (
            "a device's norm covers only its shard, so add the squares of all devices"
        )
        require(close(got, wanted), f"{must}: {squares}")
        require(close(found / got, g / length), "the direction has changed")
