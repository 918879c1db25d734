"""SIGTERM, SIGINT and SIGHUP: a command ends at once, and a run that trains after the current update.

Python's own way, an exception wherever the program happens to be, waits until a call of C++ returns, and gets lost
where that is a callback of the garbage collector.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def catch(
    handler: Callable[[int, FrameType | None], None], but: Collection[signal.Signals] = ()
) -> dict[signal.Signals, Any]:
    """Let `handler` take these signals `but` some; returns what took them before. Under nohup SIGHUP is ignored, and
    stays so."""
    before = {number: signal.getsignal(number) for number in SIGNALS if number not in but}
    if before[signal.SIGHUP] is signal.SIG_IGN:
        del before[signal.SIGHUP]
    for number in before:
        signal.signal(number, handler)
    return before


def end_at_once() -> None:
    """From here on the first of these signals ends this process, or the second where a run takes the first
    (`run/stop_request.py`).

    It ends with one line, and with exit status 128 + the signal's number, as shells have it. A thread does that, which
    Python tells of a signal at any moment.
    """
    receive, send = os.pipe()
    os.set_blocking(send, False)
    signal.set_wakeup_fd(send, warn_on_full_buffer=False)

    def left_to_the_thread(number: int, frame: FrameType | None) -> None: ...

    def watch() -> None:
        taken = False
        while number := os.read(receive, 1)[0]:
            handler = signal.getsignal(number)
            if handler is left_to_the_thread or (taken and getattr(handler, "takes_one", False)):
                with contextlib.suppress(OSError):  # nobody reads it
                    os.write(2, f"stopped at once by {signal.Signals(number).name}\n".encode())
                os._exit(128 + number)
            taken = True

    catch(left_to_the_thread)
    threading.Thread(target=watch, daemon=True).start()
