"""Ctrl-C and SIGTERM: a run stops after an update, and any other command at once.

Lesson 14 teaches this file.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from pmapdp.errors import StoppedError

if TYPE_CHECKING:
    from pmapdp.distributed import Processes

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def catch_signals(
    handler: Callable[..., None], numbers: Collection[signal.Signals] = SIGNALS
) -> Iterator[None]:
    """Let `handler` take these signals. Under nohup SIGHUP is ignored, and stays so."""
    with contextlib.ExitStack() as stack:
        for number in numbers:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                stack.callback(signal.signal, number, signal.signal(number, handler))
        yield


def stop(number: int, frame: FrameType | None) -> NoReturn:
    """End the command in good order.

    Files are closed, and processes that it started end too.
    """
    raise StoppedError(f"stopped by {signal.Signals(number).name}", 128 + number)


class StopRequest:
    """Notes the first signal that asks the run to stop. A second one ends it at once.

    No process of several may stop on its own, because the others would wait for it in
    the next all-reduce. So JAX takes SIGTERM and lets all agree on the update after
    which they stop, and the other signals are passed on as SIGTERM.

    Attributes:
        signal: The first signal that came to this process, or None.
        agreed: The signal after which all processes stop, or None until they agree.
    """

    def __init__(self, processes: "Processes"):
        self.processes = processes
        self.signal: signal.Signals | None = None
        self.agreed: signal.Signals | None = None

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
        """Return the signal if all processes stop after update `step`, else None."""
        if not self.agreed and self.processes.reached_preemption(step):
            numbers = self.processes.allgather(int(self.signal or 0))
            # 0 on all: JAX took the SIGTERM.
            self.agreed = signal.Signals(max(numbers) or signal.SIGTERM)
        return self.agreed


@contextlib.contextmanager
def watch_signals(processes: "Processes") -> Iterator[StopRequest]:
    """Note the first signal that comes inside the `with`, and stop at the second."""
    stop_request = StopRequest(processes)
    numbers = set(SIGNALS)
    if processes.count > 1:
        numbers.remove(signal.SIGTERM)
    # In other threads Python can't catch signals.
    if threading.current_thread() is not threading.main_thread():
        numbers.clear()
    with catch_signals(stop_request.on_signal, numbers):
        yield stop_request
