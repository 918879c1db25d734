"""What Orbax would print when a checkpoint cannot be written, beside the one sentence that `checkpoint.py` says.

Orbax gives up at the first array that fails and closes its event loop. The arrays still being written then report to
nobody: TensorStore calls back into the closed loop, and asyncio finds exceptions that nobody fetched.
"""

import logging
import sys
from typing import Any


def keep_quiet() -> None:
    """From now on leave those lines out, and nothing else. Calling it again changes nothing."""
    logging.getLogger("absl").addFilter(not_from_orbax)
    logging.getLogger("asyncio").addFilter(not_about_orbax)
    if not isinstance(sys.unraisablehook, WithoutClosedLoops):
        sys.unraisablehook = WithoutClosedLoops(sys.unraisablehook)


def not_from_orbax(record: logging.LogRecord) -> bool:
    """Whether a line of the log was written by something else than Orbax."""
    return "orbax" not in record.pathname


def not_about_orbax(record: logging.LogRecord) -> bool:
    """Whether a line of asyncio's log is about something else than a task of Orbax."""
    return "orbax" not in record.getMessage()


class WithoutClosedLoops:
    """A hook for exceptions that no caller can get, without those of callbacks into a closed event loop.

    Args:
        hook: takes all others.
    """

    def __init__(self, hook: Any):
        self.hook = hook

    def __call__(self, unraisable: Any) -> None:
        """Take one of them."""
        if not (unraisable.exc_type is RuntimeError and str(unraisable.exc_value) == "Event loop is closed"):
            self.hook(unraisable)
