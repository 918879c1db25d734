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
    """`job`, fast on simulated devices, and with up to S updates in a dispatch.

    The updates are a loop on the devices also where S is 1: it is another program than the step alone, may round
    differently, and a run that is resumed with another S must not.

    Args:
        job: on CPU devices, or on any where several updates in a dispatch are asked for.
        strategy: of its steps.
        asked: S, or None for what pays.

    Raises:
        UserError: a loop is asked for where the program cannot hold it.
    """
    on_cpu = job.devices[0].platform == "cpu"
    task = dataclasses.replace(job.task, transform=faster) if on_cpu else job.task
    steps = job.make_steps(task)
    # In another program pmap knows the devices of a single process only.
    alone = strategy == "pmap" and job.peers.count > 1
    if alone and (asked or 1) > 1:
        raise UserError(
            f"--steps-per-dispatch {asked} puts pmap into another program, where it knows the devices of a single "
            f"process only, and there are {job.peers.count} processes: use --steps-per-dispatch 1, or "
            "--strategy shard_map"
        )
    if on_cpu and strategy in ("pmap", "shard_map") and not alone:
        steps = steps._replace(train_step=jax.jit(join_collectives(steps.train_step), donate_argnums=0))
    if alone:
        S, dispatch = 1, job.dispatch._replace(run=steps.train_step)
    else:
        S = min(asked, updates_in_an_epoch(job)) if asked else updates_at_once(job)
        dispatch = several(steps, S, job.batch_shards)
    return dataclasses.replace(job, task=task, steps=steps, dispatch=dispatch, steps_per_dispatch=S)


def updates_in_an_epoch(job: Job) -> int:
    """Of which the run makes no more."""
    return min(job.train_batches.steps, job.total_steps)


def updates_at_once(job: Job) -> int:
    """S where nobody asks for another."""
    batches = job.train_batches
    bytes_of_a_batch = batches.split.inputs.nbytes // batches.examples * batches.batch_size
    limits = MOST, updates_in_an_epoch(job) // FEWEST_DISPATCHES, LARGEST // bytes_of_a_batch
    return max(1, min(*limits, *job.ends))
