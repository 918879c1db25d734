"""Time to say a sentence, where C++ would end the process because of another one.

Two threads of C++ can do that: JAX's client, when its connection to process 0 closes or process 0 reports an error, and
gloo's, when a connection breaks in the middle of a collective. Each throws an exception that nobody catches, and
`std::terminate` then aborts the process. What `std::set_terminate` installs is called first, in that thread, and may
take as long as it likes.
"""

import ctypes
import sys
from collections.abc import Callable

LIBRARY = "libc++.1.dylib" if sys.platform == "darwin" else "libstdc++.so.6"
HANDLER = ctypes.CFUNCTYPE(None)
kept: list[object] = []  # C++ knows only the address: what is there must not be collected
held: list[Callable[[bool], None]] = []


def hold(work: Callable[[bool], None]) -> None:
    """Call `work` in place of the next abort, instead of an earlier `work`; if it returns, the process aborts.

    Its argument says whether JAX's client is the cause, which must have been given `missed_heartbeat`.
    """
    held.append(work)
    library = ctypes.CDLL(LIBRARY)
    type_of_exception, set_terminate = library.__cxa_current_exception_type, library._ZSt13set_terminatePFvvE
    type_of_exception.restype = ctypes.POINTER(ctypes.c_char_p)  # to a std::type_info: its methods, its name
    set_terminate.argtypes, set_terminate.restype = [HANDLER], ctypes.c_void_p

    def handler() -> None:
        found = type_of_exception()
        work(bool(found) and found[1] == b"St8bad_cast")

    kept.append(HANDLER(handler))
    set_terminate(kept[-1])


def missed_heartbeat(*_: object) -> None:
    """For JAX's client to call. jaxlib 0.10 to 0.12 tries to, but with an argument that C++ cannot turn into a Python
    object: hence `std::bad_cast`. Without any callback it prints the stack and aborts the process."""
    held[-1](True)
