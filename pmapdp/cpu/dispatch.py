"""How many updates the host starts at once, and where a dispatch must end: `steps/several.py` makes the program."""

from collections.abc import Iterator, Sequence

import jax

from pmapdp.config import Config
from pmapdp.data.batches import Batches
from pmapdp.errors import UserError
from pmapdp.processes.peers import Peers

MOST = 16  # more gains little: python -m benchmarks.dispatch
FEWEST_DISPATCHES = 4  # an epoch: between them the run shows how far it is
LARGEST = 16 << 20  # bytes of examples in one dispatch; three may be under way, and a fourth ready


def in_a_loop(config: Config, devices: Sequence[jax.Device], peers: Peers) -> bool:
    """Whether updates run in a loop on the devices. On CPUs also where a dispatch holds a single one: the loop is
    another program than the step alone, may round differently, and a run that goes on with another S must not.

    Raises:
        UserError: a loop is asked for where the program cannot hold it.
    """
    asked = (config.steps_per_dispatch or 1) > 1
    if config.strategy == "pmap" and peers.count > 1:
        if asked:
            raise UserError(
                f"--steps-per-dispatch {config.steps_per_dispatch} puts pmap into another program, where it knows the "
                f"devices of a single process only, and there are {peers.count} processes: use --steps-per-dispatch 1, "
                "or --strategy shard_map"
            )
        return False
    return asked or devices[0].platform == "cpu"


def updates_at_once(config: Config, loop: bool, batches: Batches, total_steps: int) -> int:
    """S, the most updates of a dispatch, for `in_a_loop` of this configuration."""
    in_an_epoch = min(batches.steps, total_steps)
    if config.steps_per_dispatch is not None:
        return min(config.steps_per_dispatch, in_an_epoch)
    bytes_of_a_batch = batches.split.inputs.nbytes // batches.examples * batches.batch_size
    limits = (MOST, in_an_epoch // FEWEST_DISPATCHES, LARGEST // bytes_of_a_batch, config.checkpoint_every or MOST)
    return max(1, min(limits)) if loop else 1


def counts(config: Config, most: int, step: int, end: int) -> Iterator[int]:
    """The number of updates of each dispatch after update `step` up to `end`; one ends where a checkpoint is due."""
    while step < end:
        until_checkpoint = config.checkpoint_every - step % config.checkpoint_every if config.checkpoint_every else most
        count = min(most, end - step, until_checkpoint)
        yield count
        step += count
