"""SIGTERM and SIGINT as a request to stop after the current step, instead of in the middle of it."""

import contextlib
import signal
import threading
from collections.abc import Iterator


class StopRequest:
    """Whether a signal asked the run to stop, and which."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None

    def __bool__(self) -> bool:
        return self.signal is not None


@contextlib.contextmanager
def listening() -> Iterator[StopRequest]:
    """Note the first SIGTERM or SIGINT in the `StopRequest`; a second one has its usual, immediate effect.

    Outside the main thread Python cannot catch signals, and they keep their usual effect.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: object) -> None:
        request.signal = signal.Signals(number)
        restore()

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        restore()
