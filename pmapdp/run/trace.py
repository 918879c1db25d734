"""Trace some updates of a run, for --profile."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from pmapdp.job import Job

WARM_UP = 4  # updates before the trace
TRACED = 10  # updates in it


class Trace:
    """JAX's trace of ten updates with --profile, in the workdir's folder `profile`.

    `show` prints a line.
    """

    def __init__(self, job: Job, show: Callable[[str], None]):
        self.show = show
        self.updates = 0
        self.is_wanted = job.config.profile
        self.folder: Path | None = None  # of the first process, until it's written
        if job.config.profile and job.config.workdir and job.processes.is_process_0:
            self.folder = Path(job.config.workdir) / "profile"

    def update(self, state: Any) -> bool:
        """Start the trace after the first updates, and end it after some more.

        Returns:
            True if the update's time doesn't count, because tracing slows it down.
        """
        self.updates += 1
        if self.updates == WARM_UP and self.folder:
            # Otherwise the trace would begin with updates that were started before.
            jax.block_until_ready(state)
            jax.profiler.start_trace(str(self.folder), create_perfetto_trace=True)
        elif self.updates == WARM_UP + TRACED and self.folder:
            jax.block_until_ready(state)
            self.end()
        return self.is_wanted and WARM_UP <= self.updates <= WARM_UP + TRACED

    def end(self) -> None:
        """End the trace, even if the run ended before it did."""
        if self.folder and self.updates >= WARM_UP:
            jax.profiler.stop_trace()
            # A resumed run may have traced before.
            files = self.folder.glob("**/perfetto_trace.json.gz")
            file = max(files, key=lambda path: path.stat().st_mtime)
            self.show(f"trace: open {file} at ui.perfetto.dev")
            self.folder = None
