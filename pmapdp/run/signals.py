"""Let a signal stop a run after an update that all processes agree on.

Lesson 14 teaches this file.
"""

import contextlib
import signal
import threading
from types import FrameType

from jax.experimental.multihost_utils import reached_preemption_sync_point

from pmapdp.cli import SIGNALS, catch_signals, stop
from pmapdp.distributed import Processes


class StopRequest:
    """Notes the first signal that asks the run to stop. A second one ends it at once.

    No process of several may stop on its own, because the others would wait for it in
    the next all-reduce. So JAX takes SIGTERM and lets all agree on the update after
    which they stop, and the other signals are passed on as SIGTERM.
    """

    def __init__(self, processes: Processes, stack: contextlib.ExitStack):
        self.processes = processes
        self.signal: signal.Signals | None = None  # that came to this process
        self.agreed: signal.Signals | None = None  # after which the run stops
        # In other threads Python can't catch signals.
        if threading.current_thread() is threading.main_thread():
            numbers = set(SIGNALS)
            if processes.count > 1:
                numbers.remove(signal.SIGTERM)
            stack.enter_context(catch_signals(self.on_signal, numbers))

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal, and stop at the second."""
        if self.signal:
            stop(number, frame)
        self.signal = signal.Signals(number)
        if self.processes.count == 1:
            self.agreed = self.signal
        else:
            signal.raise_signal(signal.SIGTERM)

    def agree(self, step: int) -> signal.Signals | None:
        """Return the signal after which all stop with update `step`; None to go on."""
        is_open = self.processes.count > 1 and not self.agreed
        if is_open and reached_preemption_sync_point(step):
            numbers = self.processes.allgather(int(self.signal or 0))
            # 0 on all: JAX took the SIGTERM.
            self.agreed = signal.Signals(max(numbers) or signal.SIGTERM)
        return self.agreed
