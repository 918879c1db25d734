"""Mistakes that are the user's to mend, and how a command reports them.

A message is one sentence: the value given, why it will not do, and one that works.
"""

import difflib
import sys
from collections.abc import Callable, Iterable


class UserError(Exception):
    """A mistake in what was asked for; commands print its one sentence and exit with status 2."""

    status = 2


class DivergedError(UserError):
    """The loss is no longer a finite number; commands exit with status 3."""

    status = 3


class StoppedError(Exception):
    """A signal ended the run in good order.

    Args:
        message: what was kept, and how to go on.
        status: exit status of the command, 128 + the signal's number.
    """

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


def unknown(kind: str, value: str, choices: Iterable[str]) -> UserError:
    """The error for a name that does not exist: says the nearest one that does.

    Args:
        kind: what the name stands for, for example `"strategy"`.
        value: the name that was given.
        choices: the names that exist.
    """
    choices = list(choices)
    near = difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UserError(f"unknown {kind} {value!r}: {hint}choose from {', '.join(choices)}")


def run_command(main: Callable[[list[str]], None], arguments: list[str] | None = None) -> int:
    """Run `main(arguments)`; turn a `UserError` into one line on stderr and return the exit status."""
    try:
        main(sys.argv[1:] if arguments is None else arguments)
    except BaseException as error:
        status = report(error)
        if status is None:
            raise
        return status
    return 0


def report(error: BaseException) -> int | None:
    """Print the sentence of an error that has one, and return its exit status; None for any other."""
    if isinstance(error, UserError):
        print(f"error: {error}", file=sys.stderr, flush=True)
        return error.status
    if isinstance(error, StoppedError):
        print(error, file=sys.stderr, flush=True)
        return error.status
    if isinstance(error, KeyboardInterrupt):
        print("stopped by the keyboard", file=sys.stderr, flush=True)
        return 130
    return None
