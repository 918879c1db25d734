"""Time to say a sentence, where C++ aborts the process because another one is lost.

gloo throws in a thread of its own when a connection breaks in the middle of a collective, and C++ then calls abort. No
Python handler of the signal SIGABRT would run: that happens in the main thread, later. A handler of C does run, in
the thread that aborts, and may wait there as long as it likes.
"""

import ctypes
import signal
from collections.abc import Callable

HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
kept: list[object] = []  # C knows only the address: what is there must not be collected


def hold(work: Callable[[], None]) -> None:
    """Call `work` in place of an abort; if it returns, the process aborts."""

    def handler(number: int) -> None:
        work()

    callback = HANDLER(handler)
    kept.append(callback)
    library = ctypes.CDLL(None)
    library.signal.argtypes, library.signal.restype = [ctypes.c_int, HANDLER], ctypes.c_void_p
    library.signal(signal.SIGABRT, callback)
