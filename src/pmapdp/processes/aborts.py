"""Time to say a sentence, where C++ would end the process because of another one.

Two threads of C++ can do that: JAX's client, when its connection to process 0 closes or process 0 reports an error, and
gloo's, when a connection breaks in the middle of a collective. Each throws an exception that nobody catches, and
`std::terminate` then aborts the process. What `std::set_terminate` installs is called first, in that thread, and may
take as long as it likes.
"""

import ctypes
import sys
from collections.abc import Callable

LIBRARY = ctypes.CDLL("libc++.1.dylib" if sys.platform == "darwin" else "libstdc++.so.6")
LIBRARY.__cxa_current_exception_type.restype = ctypes.POINTER(ctypes.c_char_p)  # its methods, its name
held: list[Callable[[bool], None]] = []


def abort(*_: object) -> None:
    """What is called in place of an abort. JAX's client gets it as its callback too: jaxlib 0.10 to 0.12 tries to call
    it, with an argument that C++ cannot turn into a Python object, and throws `std::bad_cast`. Without a callback it
    prints the stack and ends the process."""
    found = LIBRARY.__cxa_current_exception_type()
    held[-1](not found or found[1] == b"St8bad_cast")


HANDLER = ctypes.CFUNCTYPE(None)(abort)  # C++ knows only its address: it must not be collected


def hold(work: Callable[[bool], None]) -> None:
    """Call `work` in place of the next abort, instead of an earlier `work`; if it returns, the process aborts. Its
    argument says whether JAX's client is the cause."""
    held.append(work)
    LIBRARY._ZSt13set_terminatePFvvE(HANDLER)
