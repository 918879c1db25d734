"""Mistakes that are the user's to correct, each one sentence: the value given, why it will not do, and one that works.

`cli.py` prints them. From Python they are ordinary exceptions.
"""

import contextlib
import difflib
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any


class UserError(Exception):
    """A mistake in what was asked for; commands print its one sentence and exit with status 2."""

    status = 2

    def __str__(self) -> str:
        return in_one_line(super().__str__())


class FailedError(UserError):
    """The program of the user's that was looked at is wrong; commands exit with status 1."""

    status = 1


class DivergedError(UserError):
    """The loss of update `step`, or the state after it, is not finite; commands exit with status 3."""

    status = 3

    def __init__(self, message: str, step: int = 0):
        super().__init__(message)
        self.step = step


class EvaluationError(UserError):
    """The loss of a test batch is not finite though the state is; commands exit with status 3."""

    status = 3


class ReplicasError(UserError):
    """The devices' copies of the state differ; commands exit with status 5."""

    status = 5


class StoppedError(Exception):
    """A signal ended the run in good order; commands exit with `status`, 128 + the signal's number. Where no checkpoint
    has it, `state` is the state after the last update, on the host."""

    def __init__(self, message: str, status: int, state: Any = None):
        super().__init__(message)
        self.status, self.state = status, state


def in_one_line(text: str) -> str:
    """A text as one line that a screen can show, of two paths at most as the system has them. Names of files may hold
    line breaks and characters that steer a terminal: they are shown, not obeyed."""
    line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    return line if len(line) <= 10_000 else f"{line[:5_000]}...{line[-5_000:]}"


def require(kind: type, name: str, value: Any, works: str) -> None:
    """Refuse an argument, called `name`, that is of another kind; `works` is one that is."""
    if not isinstance(value, kind):
        raise UserError(f"{name}={shown(value)} is no {kind.__name__}: give {works}")


def unknown(kind: str, value: str, choices: Iterable[str]) -> UserError:
    """The error for a name that does not exist, of a `kind` such as "strategy": says the nearest one that does."""
    choices = list(choices)
    near = difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UserError(f"unknown {kind} {value!r:.100}: {hint}choose from {', '.join(choices)}")


def reason(error: BaseException) -> str:
    """What happened, in one line: the first line of the message, or the kind of error where there is none."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror if error.filename is None else f"{error.strerror}: {error.filename}"
    try:
        said = f"no {error}" if isinstance(error, KeyError) else str(error)
    except Exception:  # of a class of the user's own
        said = ""
    return next((line.strip()[:1000] for line in said.splitlines() if line.strip()), type(error).__name__)


@contextlib.contextmanager
def explained(said: str, works: str) -> Iterator[None]:
    """Make one sentence of whatever code of the user's raises: what `said` says, why, and what `works`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{said} ({reason(error)}): {works}") from error


def shown(value: Any) -> str:
    """A value of any kind in one short line."""
    try:
        return " ".join(reprlib.repr(value).split())
    except Exception:  # of a class of the user's own
        return f"an instance of {type(value).__name__}"
