"""How a command ends: whatever happens, with one line on standard error and an exit status.

0  done                            3    the loss is no longer a finite number
1  unexpected: a fault of ours     4    another process of the run is lost
2  a mistake of the user's         5    the devices' copies of the state differ
128+n  a signal ended it, for example 130 (Ctrl-C) or 141 (`| head` has read all)
"""

import contextlib
import errno
import io
import os
import sys
import traceback
from collections.abc import Callable
from typing import TextIO

from pmapdp.command.environment import cannot_start
from pmapdp.command.shadows import shadow
from pmapdp.errors import StoppedError, UserError, in_one_line, reason
from pmapdp.files.python_files import own_fault

TRACEBACK = "PMAPDP_TRACEBACK"  # set in the environment, it shows where an unexpected error comes from
NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EBADF)
CLOSED_PIPE = 141  # 128 + SIGPIPE: the status of `cat` and the like when `head` has read enough


def run_command(main: Callable[[list[str]], None], arguments: list[str] | None = None) -> int:
    """Run `main(arguments)` and return the exit status; every error becomes one line on standard error.

    Output may go to a terminal of any encoding, which shows `?` for characters that it lacks, and to a closed pipe.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    error: BaseException | None = None
    try:
        main(sys.argv[1:] if arguments is None else arguments)
    except BaseException as raised:
        error = raised
    lost = flush(sys.stdout)
    if lost and (error is None or isinstance(error, OSError | SystemExit | ValueError)):  # it is that of the output
        error = lost
    status = 0 if error is None else report(error)
    flush(sys.stderr)
    return status


def flush(stream: TextIO) -> OSError | None:
    """Write what a stream still holds; where that fails, send it nowhere, so that Python's own end stays silent."""
    try:
        if stream:  # Python starts without one where it was closed
            stream.flush()
    except ValueError:
        return OSError(errno.EBADF, "it was closed")
    except OSError as error:
        with contextlib.suppress(OSError):  # a stream without a file, for example in a test
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def report(error: BaseException) -> int:
    """Print the one sentence about an error, and return its exit status."""
    if isinstance(error, SystemExit) and not own_fault(error):  # rich ends so when its pipe is closed
        broken = isinstance(error.__context__, BrokenPipeError)
        return CLOSED_PIPE if broken else error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    if isinstance(error, OSError) and error.errno in NOT_WRITTEN:
        works = "leave it open" if error.errno == errno.EBADF else "free some space"
        return say(f"error: {error.filename or 'the output'} cannot be written ({error.strerror}): {works}", 2)
    if isinstance(error, StoppedError):
        return say(str(error), error.status)
    if isinstance(error, KeyboardInterrupt):
        return say("stopped by the keyboard", 130)
    if isinstance(error, UserError):
        return say(f"error: {error}", error.status)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    sentence = own_fault(error)
    if not sentence and (isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in reason(error)):
        sentence = f"no memory is left ({reason(error)}): free some, or use a smaller batch or model"
    if sentence := sentence or shadow(error) or cannot_start(error):
        return say(f"error: {sentence}", UserError.status)
    shown = "" if os.environ.get(TRACEBACK) else f"; {TRACEBACK}=1 in the environment shows where"
    return say(f"error: unexpected {type(error).__name__} ({reason(error)}){shown}", 1)


def say(line: str, status: int) -> int:
    """Print one line on standard error, if anybody can read it, and return the status."""
    with contextlib.suppress(OSError):
        print(in_one_line(line), file=sys.stderr, flush=True)
    return status
