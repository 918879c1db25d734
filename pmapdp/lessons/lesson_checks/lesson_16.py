"""Checks of lesson 16's exercises: on a mesh of four devices."""

import jax
import numpy as np
from jax import P
from jax.sharding import NamedSharding

from pmapdp.collectives import collectives
from pmapdp.lessons.checks import close, mesh_of, refuse, require

N = 4


def build_sharded(answer):
    """Accept the right numbers in shards, if `build` made nothing but shards."""
    shape = (8, 6)
    was_traced = []
    shardings = []  # of what `build` makes, as the compiler has chosen it

    def make_numbers():
        return jax.random.normal(jax.random.key(0), shape)

    def build():
        x = make_numbers()
        was_traced.append(isinstance(x, jax.core.Tracer))
        jax.debug.inspect_array_sharding(x, callback=shardings.append)
        return x

    split = NamedSharding(mesh_of(N), P("data"))
    x = answer(build, split)
    require(
        isinstance(x, jax.Array) and x.shape == shape,
        "return the array that build() makes, [8, 6]",
    )
    require(
        x.sharding.is_equivalent_to(split, x.ndim),
        f"its sharding is {x.sharding}, not the one that was asked for",
    )
    require(
        was_traced and all(was_traced),
        "build() ran outside of jit: one device held all of its result before it was "
        "split",
    )
    parts = {sharding.shard_shape(shape) for sharding in shardings}
    require(
        parts == {split.shard_shape(shape)},
        "the shards are right, but build() made the whole array on a device, and it was "
        "split afterwards: tell the jit that calls build() how to shard its result",
    )
    require(np.array_equal(x, make_numbers()), "build() makes other numbers")


def zero_step(answer):
    """Accept two updates by a reduce-scatter and an all-gather, as on one device."""
    random = np.random.default_rng(0)
    w = random.normal(size=8).astype(np.float32)
    m = random.normal(size=8).astype(np.float32)

    def update_device(w, g, m):
        result = answer(w, g, m)
        require(
            isinstance(result, tuple | list) and len(result) == 2,
            "return two arrays: (w, m)",
        )
        new_w, new_m = result
        require(
            new_w.shape == (8,),
            f"w is [D] = [8] again on every device, yours has the shape {new_w.shape}",
        )
        require(
            new_m.shape == (2,),
            f"m stays this device's shard, [D / N] = [2], yours is {new_m.shape}",
        )
        return result

    mapped = jax.jit(
        jax.shard_map(
            update_device,
            mesh=mesh_of(N),
            in_specs=(P(), P("data"), P("data")),
            out_specs=(P("data"), P("data")),
            check_vma=False,
        )
    )
    for _ in range(2):
        g = random.normal(size=(N, 8)).astype(np.float32)  # a row for each device
        result = mapped(w, g.reshape(-1), m)
        new_m = np.asarray(result[1])
        new_w = np.asarray(result[0]).reshape(N, 8)
        unreduced = np.concatenate([g[d].reshape(N, 2)[d] for d in range(N)])
        mistakes = {
            "the gradient is the mean over devices: divide by N": 0.9 * m + g.sum(0),
            "this mesh has 4 devices, not 8: divide by lax.axis_size": 0.9 * m
            + g.sum(0) / 8,
            "only this device's gradient went in: psum_scatter": 0.9 * m + unreduced,
            "the old momentum is missing": g.mean(0),
        }
        refuse(new_m, mistakes)
        wanted_m = 0.9 * m + g.mean(0)
        require(close(new_m, wanted_m), "m is not 0.9 * m + the mean of the gradients")
        require(
            close(new_w, new_w[0], atol=1e-6),
            "the devices have different weights: all_gather the shards",
        )
        from_first_shard = (w[:2] - 0.1 * wanted_m.reshape(N, 2)).reshape(-1)
        overlapping = np.concatenate([w[d : d + 2] for d in range(N)])
        mistakes = {
            "every device took the first shard of w: use axis_index": from_first_shard,
            "device d's shard of w begins at d * m.size, and yours begins at d": overlapping
            - 0.1 * wanted_m,
            "the sign is wrong: w - 0.1 * m": w + 0.1 * wanted_m,
            "w was updated by the gradient, without the momentum": w - 0.1 * g.mean(0),
        }
        refuse(new_w[0], mistakes)
        w = w - 0.1 * wanted_m
        m = wanted_m
        require(close(new_w[0], w), "w is not w - 0.1 * m")
    program = mapped.lower(w, g.reshape(-1), m).compile().as_text()
    kinds = [collective.kind for collective in collectives(program)]
    require(
        "all-reduce" not in kinds,
        f"right, but with {kinds}: a reduce-scatter is half of an all-reduce",
    )
    received = sum(collective.bytes for collective in collectives(program))
    require(
        received <= 2 * w.nbytes,
        f"right, but a device gets {received} bytes: it needs the sum of the gradients, "
        "for its own shard, and not every device's whole gradient",
    )
    strict = jax.shard_map(
        answer,
        mesh=mesh_of(N),
        in_specs=(P(), P("data"), P("data")),
        out_specs=(P(), P("data")),
    )
    try:
        jax.eval_shape(strict, w, g.reshape(-1), m)
    except ValueError as error:
        require(
            "out_specs" not in str(error),
            "the numbers are right, but shard_map with out_specs=P() for w can't see "
            'that all devices get the same: lax.all_gather(..., to="invarying")',
        )
        raise


def fixed_clip(answer):
    """Accept the full gradient clipped, in its shards, and a short one left alone."""
    mapped = jax.jit(
        jax.shard_map(
            answer,
            mesh=mesh_of(N),
            in_specs=P("data"),
            out_specs=P("data"),
            check_vma=False,
        )
    )
    direction = np.random.default_rng(0).uniform(1, 2, size=16)
    direction[:4] *= 5  # the first device's shard is the longest
    direction /= np.linalg.norm(direction)
    for length in (5.0, 0.5):
        g = (length * direction).astype(np.float32)
        clipped = np.asarray(mapped(g))
        require(clipped.shape == (16,), "return a shard of the same shape as g")
        wanted = min(1.0, length)
        found = float(np.linalg.norm(clipped))
        if length < 1 and np.isclose(found, 1, rtol=1e-3):
            diagnosis = (
                "a short gradient stays as it is, so divide by maximum(1, length)"
            )
        elif length > 1 and close(clipped, np.sqrt(N) * direction):
            diagnosis = "psum adds the devices' squares, and pmean divides them by N"
        elif length > 1 and np.isclose(found, 1 / length, rtol=1e-3):
            diagnosis = "the sum of the squares is the length squared: take the root"
        else:
            diagnosis = (
                "a device's norm covers only its shard, so add the squares of all "
                "devices, and take the root of the sum"
            )
        require(
            np.isclose(found, wanted, rtol=1e-3),
            f"a gradient of length {length} must get the length {wanted:.3f}, yours "
            f"has {found:.3f}: {diagnosis}",
        )
        require(
            close(clipped, wanted * direction),
            "the length is right, but the direction has changed: divide every shard by "
            "the same number",
        )
