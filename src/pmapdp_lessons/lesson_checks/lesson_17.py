"""Checks of lesson 17's exercises: eight devices of one process stand for those of several."""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp_lessons.checks import require


def random_case():
    """A sharding over four or eight devices, and how many of them a process has."""
    random = np.random.default_rng()
    N, here = ((4, 2), (8, 2), (8, 4))[random.integers(3)]
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:N]), ("data",)), PartitionSpec("data"))
    return sharding, N, here, (N * int(random.integers(2, 5)), 3)


def rows_of(answer):
    """Of each process, the rows on its devices."""
    sharding, N, here, shape = random_case()
    share = shape[0] // N
    for first in range(0, N, here):
        found = answer(sharding, shape, jax.devices()[first : first + here])
        require(isinstance(found, tuple) and len(found) == 2, "return two numbers: (first, last)")
        require(all(isinstance(number, int) for number in found), f"return two whole numbers, yours are {found}")
        wanted = first * share, (first + here) * share
        require(
            found != (0, shape[0]) or wanted == found,
            f"this is the whole array; this process has {here} of {N} devices",
        )
        require(
            found == wanted,
            f"devices {first} to {first + here - 1} of {N} hold the rows {wanted[0]} to below {wanted[1]}, yours {found}",
        )


def assemble(answer):
    """An array with the right rows on the right devices."""
    sharding, N, _, shape = random_case()
    rows = np.random.default_rng().normal(size=shape).astype(np.float32)
    mine = jax.devices()[:N]
    found = answer(sharding, shape, rows, mine)
    require(isinstance(found, jax.Array), "return a jax.Array")
    require(found.shape == shape, f"the global shape is {shape}, yours is {found.shape}")
    require(
        found.sharding.is_equivalent_to(sharding, 2),
        f"its sharding is {found.sharding}, asked for was {sharding}",
    )
    for shard in found.addressable_shards:
        wanted = rows[shard.index]
        require(np.array_equal(shard.data, wanted), f"the rows on {shard.device} are not those that belong there")


def mended_log(answer):
    """Every process computes, one says."""
    for process in (0, 1, 2):
        computed, said = [], []

        def mean_loss(computed=computed):
            computed.append(True)
            return 0.25

        found = answer(process, mean_loss, said.append)
        require(
            len(computed) == 1,
            f"process {process} computed the loss {len(computed)} times: all must do so once, or those that do wait in vain",
        )
        require(
            said == ([0.25] if process == 0 else []), f"process {process} said {said}: process 0 alone says the loss"
        )
        require(found == 0.25, "return the loss on every process")
