"""glibc's malloc keeps what a step frees: the next step asks for the same again."""

import ctypes
import os

KEPT = 32 << 20  # bytes: the largest threshold for mmap that glibc takes
# The numbers of M_MMAP_THRESHOLD (smaller blocks come from the heap), M_TRIM_THRESHOLD (-1: nothing at its end is given
# back) and M_TOP_PAD (nor a heap that has become empty) in glibc's malloc.h; see the manual page mallopt(3).
SETTINGS = {-3: KEPT, -1: -1, -2: KEPT}


def keep_freed_memory() -> None:
    """Tell malloc not to give memory back to the system: a process then stays as large as it once was.

    XLA takes and frees the memory of a step's intermediate arrays at each call on a CPU. Left alone, malloc gives much
    of it back, and the system clears thousands of pages a step: up to a tenth of the time of simulated devices. Does
    nothing where the C library is another, or the environment sets malloc (`MALLOC_...`, `GLIBC_TUNABLES`).
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS and musl have no mallopt, Windows takes no None
        return
    for parameter, value in SETTINGS.items():
        mallopt(parameter, value)
