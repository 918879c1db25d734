"""Only there because a CPU is slow at it, for simulated devices; `fit` is the entrance. Accelerators run none of it."""

import dataclasses

import jax

from pmapdp.cpu.convolution import faster
from pmapdp.cpu.joined import join_collectives
from pmapdp.cpu.loop import several
from pmapdp.errors import UserError
from pmapdp.job import Job

MOST = 16  # updates in a dispatch; more gains little: python -m benchmarks.dispatch
FEWEST_DISPATCHES = 4  # an epoch: between them the run shows how far it is
LARGEST = 16 << 20  # bytes of examples in one dispatch; three may be under way, and a fourth ready


def fit(job: Job, strategy: str, asked: int | None) -> Job:
    """`job`, fast on simulated devices, and with up to S updates in a dispatch; `asked` is S, or None for what pays.

    The updates are a loop on the devices also where S is 1: it is another program than the step alone, may round
    differently, and a run that is resumed with another S must not.

    Raises:
        UserError: a loop is asked for where the program cannot hold it.
    """
    on_cpu, count = job.devices[0].platform == "cpu", job.peers.count
    task = dataclasses.replace(job.task, transform=faster) if on_cpu else job.task
    steps = job.make_steps(task)
    alone = job.dispatch._replace(run=steps.train_step)
    job = dataclasses.replace(job, task=task, steps=steps, dispatch=alone, steps_per_dispatch=1)
    if strategy == "pmap" and count > 1:
        if (asked or 1) > 1:
            raise UserError(
                f"--steps-per-dispatch {asked} puts pmap into another program, where it knows the devices of a single "
                f"process only, and there are {count} processes: use --steps-per-dispatch 1, or --strategy shard_map"
            )
        return job
    if on_cpu and strategy in ("pmap", "shard_map"):
        joined = join_collectives(steps.train_step)
        joined = jax.jit(joined, out_shardings=(steps.state_sharding, None), donate_argnums=0)
        steps = steps._replace(train_step=joined)
    S, shards = updates_at_once(job, asked), job.layout.batch_shards
    return dataclasses.replace(job, steps=steps, dispatch=several(steps, S, shards), steps_per_dispatch=S)


def updates_at_once(job: Job, asked: int | None = None) -> int:
    """S: as many as asked for, or what pays; at most those of an epoch."""
    batches, most = job.train_batches, min(job.train_batches.steps, job.total_steps)
    if asked:
        return min(asked, most)
    bytes_of_a_batch = batches.split.inputs.nbytes // batches.examples * batches.batch_size
    limits = MOST, most // FEWEST_DISPATCHES, LARGEST // bytes_of_a_batch
    return max(1, min(*limits, *job.ends))
