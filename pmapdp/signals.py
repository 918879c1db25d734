"""SIGTERM and SIGINT: a command ends at once, and a run that trains after the current dispatch.

Python's own way, an exception wherever the program happens to be, waits until a call of C++ returns, and gets lost
where that is a callback of the garbage collector.
"""

import contextlib
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing takes no time, so that a command can call `end_at_once` before it imports anything else
    from pmapdp.processes.agreement import StopAgreement

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def end_at_once() -> None:
    """From here on the first SIGTERM or SIGINT ends this process, or the second where a `StopRequest` takes the first.

    It ends with one line, and with exit status 128 + the signal's number, as shells have it. A thread does that, which
    Python tells of a signal at any moment; or the signal's handler, whichever is first.
    """
    receive, send = os.pipe()
    os.set_blocking(send, False)
    signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    first, taken = threading.Lock(), Counter[Any]()

    def end(number: int, frame: FrameType | None = None) -> None:
        if first.acquire(blocking=False):
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, f"stopped at once by {signal.Signals(number).name}\n".encode())
            os._exit(128 + number)

    def watch() -> None:
        while number := os.read(receive, 1):
            handler = signal.getsignal(number[0])
            taken[handler] += 1
            if handler is end or (isinstance(handler, StopRequest) and taken[handler] > 1):
                end(number[0])

    for number in SIGNALS:
        signal.signal(number, end)
    threading.Thread(target=watch, daemon=True).start()


class StopRequest:
    """Whether a signal asked the run to stop, and which; it is the signals' handler. Several processes have an
    agreement, so that all stop after the same update."""

    def __init__(self, agreement: "StopAgreement | None" = None):
        self.agreement = agreement
        self.signal: signal.Signals | None = None
        self.came = False
        self.before = {number: signal.getsignal(number) for number in SIGNALS}

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """A signal has come. The second one has the effect that it would have had without this handler."""
        if self.came:
            self.restore()
            signal.raise_signal(number)
        self.came, self.signal = True, signal.Signals(number)
        if self.agreement:
            self.agreement.signal = self.signal

    def restore(self) -> None:
        """Give the signals the handlers back that they had before."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

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
    for number in SIGNALS:
        signal.signal(number, request)
    try:
        yield request
    finally:
        request.restore()
