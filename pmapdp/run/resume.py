"""Going on with a run: what it was, how far it had come, and when to keep it."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pmapdp.errors import StoppedError
from pmapdp.job import Job
from pmapdp.metrics import Totals
from pmapdp.run.checkpoint import Checkpoints
from pmapdp.run.stop import StopRequest
from pmapdp.run.workdir import Workdir, require_shared
from pmapdp.state import TrainState, create_state
from pmapdp.steps.placing import over_all_processes


@dataclass(frozen=True)
class Progress:
    """How far a run has come.

    Attributes:
        state: `TrainState` on the devices of the run.
        step: updates made.
        totals: metric sums of the epoch that is not finished yet, so that its figures still cover every example.
    """

    state: TrainState
    step: int = 0
    totals: Totals = field(default_factory=Totals)


class Keeper:
    """Keeps a run in its workdir; does nothing where there is none.

    Args:
        job: the run.

    Raises:
        UserError: the workdir cannot be used for it.
    """

    def __init__(self, job: Job):
        self.job = job
        self.messages: list[str] = []
        self.best: dict[str, Any] = {}
        self.last: dict[str, Any] = {}
        self.workdir = Workdir(job.config.workdir) if job.config.workdir and job.peers.first else None
        self.checkpoints: Checkpoints | None = None
        self.waiting: Callable[[], None] | None = None

    def begin(self) -> Progress:
        """The initial state, or that of the newest whole checkpoint in the workdir."""
        job, config = self.job, self.job.config
        if config.workdir is None:
            return Progress(create_state(job.task, job.steps.state_sharding))
        continued = self.workdir.start(config, job.global_batch_size) if self.workdir else False
        job.peers.wait("the workdir")  # process 0 has written config.json, or refused to
        require_shared(config.workdir)
        self.checkpoints = Checkpoints(Path(config.workdir) / "checkpoints", config.keep_checkpoints, peers=job.peers)
        found, warnings = self.checkpoints.restore(job.task, job.steps.state_sharding)
        self.messages += [f"warning: {warning}" for warning in warnings]
        if found is None:
            self.messages += ["no checkpoint in the workdir yet: a new training"] if continued else ["a new training"]
            return Progress(create_state(job.task, job.steps.state_sharding))
        progress = found.progress
        self.best, self.last = progress["best"], progress["last"]
        self.messages.append(f"restored from the checkpoint of step {progress['step']:,}")
        return Progress(found.state, progress["step"], Totals(*progress["totals"]))

    def due(self, step: int) -> bool:
        """Whether a checkpoint is to be written after update `step`, in the middle of an epoch."""
        every = self.job.config.checkpoint_every
        return every is not None and step % every == 0

    def save(self, step: int, state: TrainState, totals: Totals, results: dict[str, Any] | None = None) -> None:
        """Keep this state as a checkpoint. It is written with the next call of `write`, or now where the devices must
        not go on before.

        Args:
            step: updates made.
            state: `TrainState` on the devices; its memory may be used again after the call.
            totals: metric sums of the unfinished epoch.
            results: metrics of the epoch that just ended.
        """
        if results is not None:
            self.last = results
            if not self.best or results["test_accuracy"] > self.best["test_accuracy"]:
                self.best = results
        if self.checkpoints is not None:
            self.write()
            progress = {"step": step, "totals": list(dataclasses.astuple(totals)), "best": self.best, "last": self.last}
            state = over_all_processes(state, self.job.steps.state_sharding)
            kept = self.checkpoints.on_host(state)
            accuracy = results["test_accuracy"] if results else None
            self.waiting = functools.partial(self.checkpoints.save, step, kept, progress, accuracy)
            if kept is state:
                self.write()

    def write(self) -> None:
        """Start to write what was kept last. It keeps the host busy: best called when the devices have got work."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            waiting()

    def stop(self, request: StopRequest, step: int) -> NoReturn:
        """End the run because a signal asked for it.

        Raises:
            StoppedError: always.
        """
        assert request.signal is not None
        self.wait()
        kept = (
            f"a checkpoint is in {self.job.config.workdir}, and the same command goes on from it"
            if self.job.config.workdir
            else "nothing was kept; with --workdir runs/first a run can go on"
        )
        raise StoppedError(f"stopped by {request.signal.name} after step {step:,}: {kept}", 128 + request.signal.value)

    def wait(self) -> None:
        """Wait until the last checkpoint is on the disk."""
        self.write()
        if self.checkpoints is not None:
            self.checkpoints.wait()

    def close(self) -> None:
        """Finish writing and let other processes use the workdir."""
        self.write()
        if self.checkpoints is not None:
            self.checkpoints.close()
        if self.workdir is not None:
            self.workdir.close()
