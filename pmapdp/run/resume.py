"""Going on with a run: what it was, how far it had come, and when to keep it."""

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from pmapdp.job import Job
from pmapdp.metrics import Totals
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.damage import DamagedError
from pmapdp.run.workdir import Workdir, identity, require_same, require_shared
from pmapdp.state import TrainState, create_state
from pmapdp.steps.placing import over_all_processes


@dataclass(frozen=True)
class Progress:
    """How far a run has come: the state on its devices, and what its checkpoints hold besides."""

    state: TrainState
    step: int = 0  # updates made
    totals: Totals = field(default_factory=Totals)  # of the unfinished epoch: its figures will cover every example
    best: dict[str, Any] = field(default_factory=dict)  # metrics of the epoch with the best test accuracy, if any
    last: dict[str, Any] = field(default_factory=dict)  # those of the last epoch
    skipped: list[list[int]] = field(default_factory=list)  # updates that rollbacks left out, [first, last] of each


class Keeper:
    """Keeps a run with these settings in its workdir, which `stack` closes; does nothing where there is none.

    All methods raise a `UserError` where the workdir cannot be used for it.
    """

    def __init__(self, job: Job, settings: dict[str, Any], stack: contextlib.ExitStack):
        self.job = job
        self.identity = identity(settings, job.global_batch_size)
        self.messages: list[str] = []  # for the screen
        self.checkpoints: Checkpoints | None = None
        if (path := settings["workdir"]) is None:
            return
        if job.peers.first:
            workdir = stack.enter_context(contextlib.closing(Workdir(path)))
            workdir.start(settings, job.global_batch_size, fresh=settings["fresh"])
        job.peers.wait("the workdir")  # process 0 has written config.json, or refused to
        require_shared(path)
        checkpoints = Checkpoints(Path(path) / "checkpoints", settings["keep_checkpoints"], peers=job.peers)
        self.checkpoints = stack.enter_context(contextlib.closing(checkpoints))

    def begin(self) -> Progress:
        """The initial state, or that of the newest intact checkpoint in the workdir."""
        for found in self.newest_first():
            self.messages.append(f"restored from the checkpoint of step {found.step:,}")
            return found
        if self.checkpoints is not None:
            self.messages.append("a new training")
        return self.initial()

    def initial(self) -> Progress:
        """The state before the first update."""
        return Progress(create_state(self.job.task, self.job.steps.state_sharding))

    def newest_first(self, most: float = math.inf) -> Iterator[Progress]:
        """What the checkpoints of step `most` or before hold; those that are damaged are set aside."""
        if (checkpoints := self.checkpoints) is None:
            return
        for step in reversed([step for step in checkpoints.steps() if step <= most]):
            try:
                kept = checkpoints.progress(step)
                what = f"the checkpoint of step {step} in {checkpoints.folder}"
                require_same(what, kept["belongs_to"], self.identity)
                state = checkpoints.state(step, kept, self.job.task, self.job.steps.state_sharding)
                yield Progress(state, step, Totals(*kept["totals"]), kept["best"], kept["last"], kept["skipped"])
            except DamagedError as damage:
                self.messages.append(
                    f"warning: the checkpoint of step {step} is damaged ({damage}); it was moved to "
                    f"{checkpoints.set_aside(step)}"
                )

    def last_finite(self, most: int) -> Progress | None:
        """The newest checkpoint of step `most` or before with finite numbers alone; at step 0 the initial state."""
        self.wait()
        if most == 0:
            return self.initial()
        return next((found for found in self.newest_first(most) if is_finite(found.state)), None)

    def keep(self, progress: Progress) -> None:
        """Start to write this state, whose memory may be used again after the call, as a checkpoint."""
        if self.checkpoints is not None:
            kept = {
                "totals": dataclasses.astuple(progress.totals),
                "best": progress.best,
                "last": progress.last,
                "skipped": progress.skipped,
                "belongs_to": self.identity,
            }
            state = over_all_processes(progress.state, self.job.steps.state_sharding)
            self.checkpoints.save(progress.step, state, kept)

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        if self.checkpoints is not None:
            self.checkpoints.wait()


@jax.jit
def is_finite(state: TrainState) -> jax.Array:
    """Whether all numbers of the state are finite, `[]`."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]).all()
