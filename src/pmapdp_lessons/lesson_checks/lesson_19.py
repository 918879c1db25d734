"""Checks of lesson 19's exercises."""

import math

import jax
import numpy as np
from jax import P
from jax.sharding import Mesh

from pmapdp.compare.collectives import collectives
from pmapdp_lessons.checks import require


def bytes_sent(answer):
    """2 (N - 1) messages of n / N bytes."""
    random = np.random.default_rng()
    for N in (4, int(random.integers(5, 100))):
        n = N * int(random.integers(1000, 2000))
        found, expected = answer(n, N), 2 * (N - 1) * n / N
        require(
            not math.isclose(found, 2 * n, rel_tol=1e-9),
            f"2 n = {2 * n} is the limit for many devices; with N = {N} a device keeps its own part in both phases",
        )
        require(
            not math.isclose(found, expected / 2, rel_tol=1e-9),
            "this is one phase: after the reduce-scatter the sums must be sent around as well",
        )
        require(
            not math.isclose(found, N * expected, rel_tol=1e-9),
            f"{N} times too much: a message has n / N = {n // N} bytes, not n",
        )
        require(
            math.isclose(found, expected, rel_tol=1e-9),
            f"n = {n}, N = {N}: 2 (N - 1) messages of n / N bytes are {expected:.0f} bytes, yours is {found}",
        )


def mended_batch(answer):
    """The least b with r / (b e + r) at most `share`."""
    random = np.random.default_rng()
    for share in (0.1, 0.25):
        example = 1e-6 * int(random.integers(1, 9))
        least = int(random.integers(20, 200))
        # The exact solution lies well between two whole numbers, so that rounding errors decide nothing.
        reduce = (least - 0.5) * example * share / (1 - share)
        found = answer(example, reduce, share)
        require(np.shape(found) == () and float(found) == int(found), f"examples are whole: yours is {found}")
        found = int(found)
        require(
            found != least - 1,
            f"with {found} examples the all-reduce takes {reduce / (found * example + reduce):.1%} of the step, more "
            f"than {share:.0%}: round up",
        )
        of_compute = math.ceil(reduce / (share * example))
        require(
            found != of_compute,
            f"{found} makes the all-reduce {share:.0%} of the examples' time; the step is their time plus the all-reduce",
        )
        require(
            found == least,
            f"e = {example:.0e} s, r = {reduce:.2e} s, share {share}: {least} examples are enough and {least - 1} are not, "
            f"yours is {found}",
        )


def ring_sum(answer):
    """The sum over four devices, by messages to the neighbour alone, each of a quarter of the array."""
    mesh = Mesh(np.array(jax.devices()[:4]), ("data",))
    x = np.random.default_rng().normal(size=(4, 8)).astype(np.float32)
    specs = {"in_specs": P("data"), "out_specs": P("data"), "check_vma": False}
    mapped = jax.jit(jax.shard_map(lambda x: answer(x[0])[None], mesh=mesh, **specs))
    found = np.asarray(mapped(x))
    require(
        found.shape == (4, 2), f"a device returns its quarter of the sum, [2]; yours has the shape {found.shape[1:]}"
    )
    sums = x.sum(0).reshape(4, 2)
    require(
        any(np.allclose(found, np.roll(sums, shift, axis=0), atol=1e-5) for shift in range(4)),
        "the quarters are not those of the sum: in every round add the own quarter that belongs to what has arrived",
    )
    require(np.allclose(found, sums, atol=1e-5), "right sums, but device d must end with quarter d")
    kinds = {each.kind: each for each in collectives(mapped.lower(x).compile().as_text())}
    require(set(kinds) == {"collective-permute"}, f"use lax.ppermute alone; the program has {sorted(kinds)}")
    require(
        kinds["collective-permute"].bytes == 3 * 8,
        f"each device sends {kinds['collective-permute'].bytes} bytes: three messages of a quarter are {3 * 8}",
    )
