"""Resuming a run: where it begins, and to where it may be rolled back."""

import contextlib
from pathlib import Path
from typing import Any

from pmapdp.job import Job
from pmapdp.run.checkpoint import Checkpoint, Checkpoints
from pmapdp.run.workdir import claimed, identity, require_shared
from pmapdp.state import create_state, is_finite


def open_checkpoints(job: Job, stack: contextlib.ExitStack) -> Checkpoints | None:
    """The checkpoints of a run, in its workdir, which `stack` lets go of; None where it has none.

    Raises:
        UserError: the workdir cannot be used for it.
    """
    config = job.config
    if (path := config.workdir) is None:
        return None
    if job.peers.first:
        stack.enter_context(claimed(path, config, job.global_batch_size))
    job.peers.wait("the workdir")  # process 0 has written config.json, or refused to
    require_shared(path)
    checkpoints = Checkpoints(
        Path(path) / "checkpoints",
        config.keep_checkpoints,
        belongs_to=identity(config, job.global_batch_size, job.content),
        peers=job.peers,
    )
    return stack.enter_context(contextlib.closing(checkpoints))


def beginning(job: Job, checkpoints: Checkpoints | None) -> Checkpoint:
    """The newest intact checkpoint, or the initial state.

    Beside the state there are the `totals` of the unfinished epoch, so that its figures will cover every example; the
    metrics of the epoch with the `best` test accuracy and of the `last`, empty before the first; and `skipped`, the
    updates that rollbacks left out, [first, last] of each.
    """
    if checkpoints is not None:
        for found in checkpoints.newest_first(job.task, job.strategy.state_sharding):
            return found
    progress: dict[str, Any] = {"totals": {}, "best": {}, "last": {}, "skipped": []}
    return Checkpoint(create_state(job.task, job.strategy.state_sharding), 0, progress)


def last_finite(job: Job, checkpoints: Checkpoints, most: int) -> Checkpoint | None:
    """The newest checkpoint of step `most` or before with finite numbers alone; at step 0 the initial state."""
    checkpoints.wait()
    if most == 0:
        return beginning(job, None)
    kept = checkpoints.newest_first(job.task, job.strategy.state_sharding, most)
    return next((found for found in kept if is_finite(found.state)), None)
