"""Going on with a run: what it was, how far it had come, and when to keep it."""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired

import jax
import jax.numpy as jnp

from pmapdp.errors import UserError
from pmapdp.forms import mismatch
from pmapdp.job import Job
from pmapdp.metrics import Totals
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.damage import DamagedError
from pmapdp.run.workdir import Workdir, differences, identity, require_shared
from pmapdp.state import TrainState, create_state
from pmapdp.steps.placing import over_all_processes

KEPT: dict[str, Any] = {  # in a checkpoint, as JSON
    "step": int,
    "totals": list[float],
    "best": dict[str, Any],
    "last": dict[str, Any],
    "skipped": NotRequired[list[list[int]]],
}


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
    """Keeps a run with these settings in its workdir; does nothing where there is none.

    All methods raise a `UserError` where the workdir cannot be used for it.
    """

    def __init__(self, job: Job, settings: dict[str, Any]):
        self.job, self.settings = job, settings
        self.identity = identity(settings, job.global_batch_size)
        self.messages: list[str] = []
        self.path: str | None = settings["workdir"]
        self.workdir = Workdir(self.path) if self.path is not None and job.peers.first else None
        self.checkpoints: Checkpoints | None = None
        self.waiting: Callable[[], None] | None = None

    def begin(self) -> Progress:
        """The initial state, or that of the newest whole checkpoint in the workdir."""
        job, settings = self.job, self.settings
        if self.path is None:
            return Progress(create_state(job.task, job.steps.state_sharding))
        continued = False
        if self.workdir is not None:
            continued = self.workdir.start(settings, job.global_batch_size, fresh=settings["fresh"])
        job.peers.wait("the workdir")  # process 0 has written config.json, or refused to
        require_shared(self.path)
        folder = Path(self.path) / "checkpoints"
        self.checkpoints = Checkpoints(folder, settings["keep_checkpoints"], peers=job.peers)
        for found in self.newest_first(self.checkpoints):
            self.messages.append(f"restored from the checkpoint of step {found.step:,}")
            return found
        self.messages += ["no checkpoint in the workdir yet: a new training"] if continued else ["a new training"]
        return Progress(create_state(job.task, job.steps.state_sharding))

    def newest_first(self, checkpoints: Checkpoints, most: float = math.inf) -> Iterator[Progress]:
        """What the checkpoints of step `most` or before hold; those that are damaged are set aside."""
        for step in reversed([step for step in checkpoints.steps() if step <= most]):
            try:
                yield self.read(checkpoints, step)
            except DamagedError as damage:
                self.messages.append(
                    f"warning: the checkpoint of step {step} is damaged ({damage}); it was moved to "
                    f"{checkpoints.set_aside(step)}"
                )

    def last_finite(self, most: int) -> Progress | None:
        """The newest checkpoint of step `most` or before with finite numbers alone; at step 0 the initial state."""
        self.wait()
        if most == 0:
            return Progress(create_state(self.job.task, self.job.steps.state_sharding))
        assert self.checkpoints is not None  # rollbacks need a workdir
        return next((found for found in self.newest_first(self.checkpoints, most) if is_finite(found.state)), None)

    def read(self, checkpoints: Checkpoints, step: int) -> Progress:
        """The progress of the run after `step`; a `DamagedError` says that it is not what was written."""
        kept = checkpoints.progress(step)
        if differing := differences(kept.get("belongs_to", self.identity), self.identity):
            raise UserError(
                f"the checkpoint of step {step} in {checkpoints.folder} belongs to a run of another configuration, "
                f"which differs in {differing}: use the same, another folder, or --fresh to delete that run"
            )
        wrong = mismatch(kept, KEPT, "")
        if wrong or len(kept["totals"]) != 3 or min(kept["totals"]) < 0:
            raise DamagedError(f"its progress {wrong or 'holds impossible totals'}")
        state = checkpoints.state(step, kept, self.job.task, self.job.steps.state_sharding)
        if int(state.step) != step:
            raise DamagedError(f"its state is that of step {int(state.step)}")
        return Progress(state, step, Totals(*kept["totals"]), kept["best"], kept["last"], kept.get("skipped", []))

    def keep(self, progress: Progress, *, ended: bool = False) -> None:
        """Keep this state, whose memory may be used again after the call, as a checkpoint. It is written with the next
        call of `write`, or now where the devices must not go on before. `ended` says whether an epoch, the one of
        `progress.last`, has just ended.
        """
        if self.checkpoints is None:
            return
        self.write()
        kept = {
            "step": progress.step,
            "totals": list(dataclasses.astuple(progress.totals)),
            "best": progress.best,
            "last": progress.last,
            "skipped": progress.skipped,
            "belongs_to": self.identity,
        }
        state = over_all_processes(progress.state, self.job.steps.state_sharding)
        copy = self.checkpoints.on_host(state)
        accuracy = progress.last["test_accuracy"] if ended else None
        self.waiting = functools.partial(self.checkpoints.save, progress.step, copy, kept, accuracy)
        if copy is state:
            self.write()

    def write(self) -> None:
        """Start to write what was kept last. It keeps the host busy: best called when the devices have got work."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting()

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        self.write()
        if self.checkpoints is not None:
            self.checkpoints.wait()

    def close(self) -> None:
        """Finish writing and let other processes use the workdir."""
        with contextlib.ExitStack() as stack:
            if self.workdir is not None:
                stack.callback(self.workdir.close)
            if self.checkpoints is not None:
                stack.callback(self.checkpoints.close)
            self.write()


@jax.jit
def is_finite(state: TrainState) -> jax.Array:
    """Whether all numbers of the state are finite, `[]`."""
    return jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state)]).all()
