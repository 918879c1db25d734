"""glibc's malloc keeps what a step frees: the next step asks for the same again."""

import ctypes
import os

KEPT = 32 << 20  # bytes: the largest threshold for mmap that glibc takes
# Their numbers in glibc's malloc.h, and what they are set to; see the manual page mallopt(3).
SETTINGS = {
    "M_MMAP_THRESHOLD": (-3, KEPT),  # smaller blocks come from the heap, which is kept, and not from the system
    "M_TRIM_THRESHOLD": (-1, -1),  # nothing at the end of a heap is given back
    "M_TOP_PAD": (-2, KEPT),  # nor is a heap that has become empty
}


def keep_freed_memory() -> None:
    """Tell malloc not to give memory back to the system: a process then stays as large as it once was.

    XLA takes and frees the memory of a step's intermediate arrays at each call on a CPU. Left alone, malloc gives much
    of it back, and the system clears thousands of pages a step: with simulated devices that took up to a tenth of the
    time. Does nothing where the C library is another one, or where the environment sets malloc itself (`MALLOC_...`,
    `GLIBC_TUNABLES`).
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # macOS and musl have no mallopt, Windows takes no None
        return
    for parameter, value in SETTINGS.values():
        mallopt(parameter, value)
