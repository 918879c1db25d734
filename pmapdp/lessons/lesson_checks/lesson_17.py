"""Checks of lesson 17's exercises: eight devices of one process stand for several processes."""

from types import SimpleNamespace

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pmapdp.lessons.checks import require


def assemble(answer):
    """An array with the right rows on the right devices, whatever their order in the mesh."""
    random = np.random.default_rng()
    N = int(random.choice([2, 4, 8]))
    mine = [jax.devices()[number] for number in random.permutation(8)[:N]]
    sharding = NamedSharding(Mesh(np.array(mine), ("data",)), PartitionSpec("data"))
    rows = random.normal(size=(N * int(random.integers(2, 5)), 3)).astype(np.float32)
    found = answer(sharding, rows.shape, rows, mine)
    require(isinstance(found, jax.Array), "return a jax.Array")
    require(
        found.shape == rows.shape,
        f"the global shape is {rows.shape}, yours is {found.shape}",
    )
    require(
        found.sharding.is_equivalent_to(sharding, 2),
        f"its sharding is {found.sharding}, asked for was {sharding}",
    )
    for shard in found.addressable_shards:
        require(
            np.array_equal(shard.data, rows[shard.index]),
            f"the rows on {shard.device} belong elsewhere",
        )


def group_by_machine(answer):
    """Each row holds the GPUs of one machine, and each GPU is there once."""
    random = np.random.default_rng()
    machines, per_machine = int(random.integers(2, 5)), int(random.integers(2, 5))
    # Neighbours in the list and in the numbers are of different machines, as on some
    # clusters.
    by_turns = (
        np.arange(machines * per_machine).reshape(machines, per_machine).T.ravel()
    )
    gpus = [
        SimpleNamespace(process_index=int(process), id=number)
        for number, process in enumerate(by_turns)
    ]
    gpus = gpus[(start := int(random.integers(machines))) :] + gpus[:start]
    found = np.asarray(answer(list(gpus), per_machine), dtype=object)
    shape = machines, per_machine
    require(
        found.shape == shape,
        f"the shape is [machines, per_machine], here {shape}; yours is {found.shape}",
    )
    require(
        {id(gpu) for gpu in found.flat} == {id(gpu) for gpu in gpus},
        "each GPU comes once",
    )
    for row in found:
        on = sorted({gpu.process_index // per_machine for gpu in row})
        require(
            len(on) == 1,
            f"a row has GPUs of the machines {on}: the second axis must stay inside a machine",
        )


def fixed_log(answer):
    """Every process computes, one says."""
    for process in (0, 1, 2):
        computed, said = [], []

        def mean_loss(computed=computed):
            computed.append(True)
            return 0.25

        found = answer(process, mean_loss, said.append)
        times = f"process {process} computed the loss {len(computed)} times"
        require(
            len(computed) == 1,
            f"{times}: all must do so once, or some wait for the others in vain",
        )
        require(
            said == [0.25] * (process == 0),
            f"process {process} said {said}: process 0 alone says the loss",
        )
        require(found == 0.25, "return the loss on every process")
