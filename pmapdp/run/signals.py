"""Let a signal stop a run after an update that all processes agree on.

Lesson 14 teaches this file.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
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

    def __init__(self, processes: Processes):
        self.processes = processes
        self.signal: signal.Signals | None = None  # that came to this process
        self.agreed: signal.Signals | None = None  # after which the run stops

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


@contextlib.contextmanager
def watch_signals(processes: Processes) -> Iterator[StopRequest]:
    """Note the signals that come meanwhile."""
    stop_request = StopRequest(processes)
    numbers = set(SIGNALS)
    if processes.count > 1:
        numbers.remove(signal.SIGTERM)
    # In other threads Python can't catch signals.
    if threading.current_thread() is not threading.main_thread():
        numbers.clear()
    with catch_signals(stop_request.on_signal, numbers):
        yield stop_request
