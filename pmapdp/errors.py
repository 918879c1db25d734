"""Mistakes that are the user's to mend, and how a command reports them.

A message is one sentence: the value given, why it will not do, and one that works. `run_command` is also the last net:
whatever happens, a command ends with one line on standard error and an exit status.

    0  done                            3    the loss is no longer a finite number
    1  unexpected: a fault of ours     128+n  a signal ended it, for example 130 (Ctrl-C) or 141 (`| head` has read all)
    2  a mistake of the user's           5  the devices' copies of the state differ
"""

import contextlib
import difflib
import errno
import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import NoReturn, TextIO

from pmapdp.environment import cannot_start, check_xla_flags

TRACEBACK = "PMAPDP_TRACEBACK"  # set in the environment, it shows where an unexpected error comes from
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
CLOSED_PIPE = 141  # 128 + SIGPIPE: the status of `cat` and the like when `head` has read enough


class UserError(Exception):
    """A mistake in what was asked for; commands print its one sentence and exit with status 2."""

    status = 2


class DivergedError(UserError):
    """The loss of an update, or of a test batch, with the number `step` is not finite; commands exit with status 3."""

    status = 3

    def __init__(self, message: str, step: int = 0):
        super().__init__(message)
        self.step = step


class ReplicasError(UserError):
    """The devices' copies of the state differ; commands exit with status 5."""

    status = 5


class StoppedError(Exception):
    """A signal ended the run in good order; commands exit with `status`, 128 + the signal's number."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


def unknown(kind: str, value: str, choices: Iterable[str]) -> UserError:
    """The error for a name that does not exist, of a `kind` such as "strategy": says the nearest one that does."""
    choices = list(choices)
    near = difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UserError(f"unknown {kind} {value!r}: {hint}choose from {', '.join(choices)}")


def reason(error: BaseException) -> str:
    """What happened, in one line: the first line of the message, or the kind of error where there is none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def run_command(main: Callable[[list[str]], None], arguments: list[str] | None = None) -> int:
    """Run `main(arguments)` and return the exit status; every error becomes one line on standard error.

    Output may go to a terminal of any encoding, which shows `?` for signs that it lacks, and to a pipe that is closed.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    alone = sys.excepthook is end
    if alone and not os.environ.get(TRACEBACK):  # silence threads, and C++ that calls Python
        silent: Callable[..., None] = lambda *_: None  # noqa: E731
        sys.excepthook = sys.unraisablehook = threading.excepthook = silent
    error: BaseException | None = None
    try:
        if refusal := check_xla_flags():
            raise UserError(refusal)
        main(sys.argv[1:] if arguments is None else arguments)
    except BaseException as raised:
        error = raised
    if alone:
        end(None, error)
    return finish(error)


def end(_: object, error: BaseException | None, trace: object = None) -> NoReturn:
    """End a command without the work of an interpreter that ends: it takes a while, in which signals would have their
    own effect. It is the `sys.excepthook` of `python -m pmapdp.COMMAND` for what that meets before `run_command`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os._exit(finish(error))


def finish(error: BaseException | None) -> int:
    """Write what is still to be written, report an error, and return the exit status."""
    lost = flush(sys.stdout)
    if lost and (error is None or isinstance(error, OSError | SystemExit)):  # the error is that of the output
        error = lost
    status = 0 if error is None else report(error)
    flush(sys.stderr)
    return status


def flush(stream: TextIO) -> OSError | None:
    """Write what a stream still holds; where that fails, send it nowhere, so that Python's own end stays silent."""
    try:
        if stream:  # Python starts without one where it was closed
            stream.flush()
    except OSError as error:
        with contextlib.suppress(OSError):  # a stream without a file, for example in a test
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return error
    return None


def report(error: BaseException) -> int:
    """Print the one sentence about an error, and return its exit status."""
    if isinstance(error, SystemExit):  # rich ends so when its pipe is closed
        broken = isinstance(error.__context__, BrokenPipeError)
        return CLOSED_PIPE if broken else error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, BrokenPipeError):
        return CLOSED_PIPE
    if isinstance(error, OSError) and error.errno in NO_SPACE:
        return say(f"error: {error.filename or 'the output'} cannot be written ({error.strerror}): free some space", 2)
    if isinstance(error, StoppedError):
        return say(str(error), error.status)
    if isinstance(error, KeyboardInterrupt):
        return say("stopped by the keyboard", 130)
    if isinstance(error, UserError):
        return say(f"error: {error}", error.status)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
    if sentence := cannot_start(error):
        return say(f"error: {sentence}", UserError.status)
    shown = "" if os.environ.get(TRACEBACK) else f"; {TRACEBACK}=1 in the environment shows where"
    return say(f"error: unexpected {type(error).__name__} ({reason(error)}){shown}", 1)


def say(line: str, status: int) -> int:
    """Print one line on standard error, if anybody can read it, and return the status.

    Names of files may hold line breaks and signs that steer a terminal: they are shown, not obeyed.
    """
    line = "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in line)
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)
    return status
