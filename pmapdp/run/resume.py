"""Resuming a run: where it begins, and to where it may be rolled back."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from pmapdp.errors import UserError
from pmapdp.job import Job
from pmapdp.run.best_epoch import ends_early
from pmapdp.run.checkpoint import Checkpoint, Checkpoints
from pmapdp.run.start_weights import with_weights
from pmapdp.run.workdir import DEFAULTS, changes, claimed, identity, listed, require_shared
from pmapdp.state import create_state, is_finite
from pmapdp.steps.placing import place


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
    """The newest intact checkpoint, or the initial state, with the weights of `--init-from` where it is given.

    Beside the state there are the `totals` of the unfinished epoch, so that its figures will cover every example; the
    metrics of the `best` epoch and of the `last`, empty before the first; `skipped`, the updates that rollbacks left
    out, [first, last] of each; and where they apply, what was `taken` by `--init-from`, and with which changes the run
    was trained on after its end, `changes` after update `changed`.
    """
    if checkpoints is not None:
        for found in checkpoints.newest_first(job.task, job.strategy.state_sharding):
            if changes := changes_after_end(job, found):
                found.progress.update(changed=found.step, changes=changes)
            return found
    task, taken = with_weights(job.task, job.config.init_from) if job.config.init_from else (job.task, {})
    progress: dict[str, Any] = {"totals": {}, "best": {}, "last": {}, "skipped": [], "taken": taken}
    return Checkpoint(create_state(task, job.strategy.state_sharding), 0, progress)


def changes_after_end(job: Job, found: Checkpoint) -> dict[str, list[Any]]:
    """With which other settings, [then, now] of each, a run that has ended is trained on: how long, and its learning
    rate. Update n then has the learning rate that the new settings give update n.

    Raises:
        UserError: the run has not ended, so that it must resume as it began; or it has no more updates to make.
    """
    then: dict[str, Any] = found.progress["belongs_to"]
    different = changes(then, identity(job.config, job.global_batch_size), scheduled=True)
    then = DEFAULTS | then
    ended = found.step >= then["epochs"] * job.train_batches.per_epoch or ends_early(found.progress, then["patience"])
    if not different or (ended and found.step < job.total_steps):
        return different
    why, works = f"has not ended (step {found.step:,})", "train it to its end with its own settings first"
    if ended:
        epoch = found.progress["last"]["epoch"]
        why, works = f"has made its {epoch} epochs", f"give --epochs {epoch + 5} to train it on"
    raise UserError(
        f"the run in --workdir {job.config.workdir} {why}, and differs in {listed(different)}: {works}, or name "
        "another folder"
    )


def rolled_back(job: Job, checkpoints: Checkpoints, skipped: list[list[int]], step: int) -> Checkpoint | None:
    """To where a run goes back whose loss is not finite at update `step`; None where no checkpoint is finite.

    The batches between the two are skipped, beside those that were `skipped` before, as Chowdhery et al., "PaLM", 2022,
    did, because an earlier batch than the one that shows it may have caused it. They count as steps, so the state that
    is given says `step`, but not in the optimizer's schedule.
    """
    # A checkpoint that is there because somebody stopped the run is passed over: the result must not depend on it.
    steps, every = job.train_batches.per_epoch, job.config.checkpoint_every or job.total_steps
    most = max(*((step - 1) // each * each for each in (steps, every)), *(last for _, last in skipped))
    checkpoints.wait()
    kept = checkpoints.newest_first(job.task, job.strategy.state_sharding, most)
    found = next((each for each in kept if is_finite(each.state)), None) if most else beginning(job, None)
    if found is None:
        return None
    progress = found.progress | {"skipped": [*skipped, [found.step + 1, step]]}
    if found.step // steps != step // steps:
        progress["totals"] = {}  # of another epoch
    state = dataclasses.replace(found.state, step=place(np.int32(step), found.state.step.sharding))
    return Checkpoint(state, found.step, progress)
