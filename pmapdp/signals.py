"""SIGTERM, SIGINT and SIGHUP: a command ends at once, and a run that trains after the current dispatch.

Python's own way, an exception wherever the program happens to be, waits until a call of C++ returns, and gets lost
where that is a callback of the garbage collector.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # importing takes no time, so that a command can call `end_at_once` before it imports anything else
    from pmapdp.processes.agreement import StopAgreement

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def catch(handler: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Let `handler` take these signals; returns what took them before. Under nohup SIGHUP is ignored, and stays so."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, handler)
    return before


def end_at_once() -> None:
    """From here on the first of these signals ends this process, or the second where a `StopRequest` takes the first.

    It ends with one line, and with exit status 128 + the signal's number, as shells have it. A thread does that, which
    Python tells of a signal at any moment; or the signal's handler, whichever is first.
    """
    receive, send = os.pipe()
    os.set_blocking(send, False)
    signal.set_wakeup_fd(send, warn_on_full_buffer=False)
    first = threading.Lock()

    def end(number: int, frame: FrameType | None = None) -> None:
        if first.acquire(blocking=False):
            with contextlib.suppress(OSError):  # nobody reads it
                os.write(2, f"stopped at once by {signal.Signals(number).name}\n".encode())
            os._exit(128 + number)

    def watch() -> None:
        taken = False
        while number := os.read(receive, 1):
            handler = signal.getsignal(number[0])
            if handler is end or (taken and isinstance(handler, StopRequest)):
                end(number[0])
            taken = True

    catch(end)
    threading.Thread(target=watch, daemon=True).start()


class StopRequest:
    """While it is entered, it notes the first signal that asks the run to stop; a second one has the effect that it had
    before. Several processes have an agreement, so that all stop after the same update.

    Outside the main thread Python cannot catch signals, and they keep their usual effect.
    """

    def __init__(self, agreement: "StopAgreement | None" = None):
        self.agreement = agreement
        self.signal: signal.Signals | None = None
        self.came = False
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self.before = catch(self)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """A signal has come."""
        if self.came:
            self.__exit__()
            signal.raise_signal(number)
        self.came, self.signal = True, signal.Signals(number)
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
