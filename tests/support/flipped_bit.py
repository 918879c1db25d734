"""A training in which one bit of one device's copy of an array flips: `flipped_bit.py STEP LEAF DEVICE FLAGS...`.

No program can make a memory fail, so the flip stands between two updates: the array is
put together anew from the arrays of the single devices, one of which is altered.
Everything else is the program of `pmapdp.train`.
"""

import dataclasses
import importlib
import sys

import jax
import numpy as np

from pmapdp import cli
from pmapdp.train import Job, prepare


def with_flip(x: jax.Array, device: jax.Device) -> jax.Array:
    """`x` with another bit in the copy of a device, if that belongs to this process."""
    shards = [shard.data for shard in x.addressable_shards]
    for number, shard in enumerate(shards):
        if shard.devices() == {device}:
            words = np.array(shard)
            words.view(np.uint32).reshape(-1)[words.size // 2] ^= 1 << 3
            shards[number] = jax.device_put(words, device)
    return jax.make_array_from_single_device_arrays(x.shape, x.sharding, shards)


def flipping(job: Job, after: int, leaf: str, device: int) -> Job:
    """`job` in which a bit flips on its device of this number, after update `after`."""
    made = 0

    def train_step(state, batch):
        nonlocal made
        state, sums = job.strategy.train_step(state, batch)
        made += 1
        if made == after:
            leaves, structure = jax.tree_util.tree_flatten_with_path(state)
            named = [
                (jax.tree_util.keystr(path, simple=True, separator="/"), x)
                for path, x in leaves
            ]
            assert leaf in dict(named), dict(named).keys()
            state = structure.unflatten(
                [
                    with_flip(x, job.devices[device]) if name == leaf else x
                    for name, x in named
                ]
            )
        return state, sums

    return dataclasses.replace(
        job, strategy=job.strategy._replace(train_step=train_step)
    )


if __name__ == "__main__":
    step, leaf, device, *flags = sys.argv[1:]
    program = importlib.import_module("pmapdp.train")
    program.prepare = lambda *values, **own: flipping(
        prepare(*values, **own), int(step), leaf, int(device)
    )
    sys.exit(cli.run(program.main, flags))
