"""SIGTERM and SIGINT as a request to stop after the current dispatch, instead of in the middle of it.

Before and after that a command ends at once: Python's own way, an exception wherever the program happens to be, gets
lost when that is a callback of the garbage collector, and in threads of C++ it ends in a crash.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing takes no time, so that a command can call `end_at_once` before it imports anything else
    from pmapdp.processes.agreement import StopAgreement

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def end_at_once() -> None:
    """From here on SIGTERM and SIGINT end this process with one line and exit status 128 + the signal's number."""

    def end(number: int, frame: FrameType | None) -> None:
        os.write(2, f"stopped at once by {signal.Signals(number).name}\n".encode())
        os._exit(128 + number)

    for number in SIGNALS:
        signal.signal(number, end)


class StopRequest:
    """Whether a signal asked the run to stop, and which.

    Args:
        agreement: among several processes, which all stop after the same update; None for a process alone.
    """

    def __init__(self, agreement: "StopAgreement | None" = None):
        self.agreement = agreement
        self.signal: signal.Signals | None = None

    def note(self, number: int) -> None:
        """A signal has come."""
        self.signal = signal.Signals(number)
        if self.agreement:
            self.agreement.signal = self.signal

    def begin(self, step: int) -> None:
        """The updates up to `step` are about to be started."""
        if self.agreement:
            self.agreement.begin(step)
            if self.agreement.reached:
                self.signal = self.agreement.signal

    def __bool__(self) -> bool:
        return self.signal is not None and (self.agreement is None or self.agreement.reached)


@contextlib.contextmanager
def listening(agreement: "StopAgreement | None" = None) -> Iterator[StopRequest]:
    """Note the first SIGTERM or SIGINT in the `StopRequest`; a second one has the effect that it had before.

    Outside the main thread Python cannot catch signals, and they keep their usual effect.
    """
    request = StopRequest(agreement)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        request.note(number)
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        restore()
