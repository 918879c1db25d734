"""Errors that you can correct. Each message is one sentence: the bad value, the reason, and a value that works.

`cli.py` prints them. From Python they are ordinary exceptions.
"""

import contextlib
import difflib
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any

DIVERGED_ADVICE = "try a lower --learning-rate, --warmup-steps 100, or --clip-norm 1"  # advice, if training diverges


class UserError(Exception):
    """A mistake in what was asked for. Commands print its one sentence, and exit with its status."""

    status = 2

    def __str__(self) -> str:
        return in_one_line(super().__str__())


class FailedError(UserError):
    """The program that a command has looked at is wrong."""

    status = 1


class DivergedError(UserError):
    """A loss or the state is not finite. `step` is the update with that training loss, or 0 for anything else."""

    status = 3

    def __init__(self, message: str, step: int = 0):
        super().__init__(message)
        self.step = step


class ReplicasError(UserError):
    """The devices' copies of the state differ."""

    status = 5


class StoppedError(
    KeyboardInterrupt
):  # so that `except Exception` doesn't go on after Ctrl-C
    """A signal ended the run in good order. `status` is 128 + its number, `state` the state if no checkpoint has it."""

    def __init__(self, message: str, status: int, state: Any = None):
        super().__init__(message)
        self.status, self.state = status, state


def in_one_line(text: str) -> str:
    """Return a text as one line. Line breaks and characters that steer a terminal are shown, not obeyed."""
    line = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)
    return line if len(line) <= 10_000 else f"{line[:5_000]}...{line[-5_000:]}"


def unknown(kind: str, value: str, choices: Iterable[str]) -> UserError:
    """Make the error for a name that doesn't exist, of a `kind` such as "strategy". It suggests a name that does."""
    choices = list(choices)
    near = [choice for choice in choices if choice.startswith(value)]
    near += difflib.get_close_matches(value, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UserError(
        f"unknown {kind} {value!r:.100}: {hint}choose from {', '.join(choices)}"
    )


def reason(error: BaseException) -> str:
    """Say what happened: the first line of the error's message, or its kind if it has none."""
    message = getattr(error, "strerror", None) or (
        f"no {error}" if isinstance(error, KeyError) else str(error)
    )
    return next(
        (line.strip()[:1000] for line in message.splitlines() if line.strip()),
        type(error).__name__,
    )


@contextlib.contextmanager
def explain_errors(failure: str, advice: str) -> Iterator[None]:
    """Turn an error of a file or of your code into one sentence: the `failure`, its reason, and the `advice`."""
    try:
        yield
    except UserError:
        raise
    except (
        Exception
    ) as error:  # NumPy, zipfile, gzip and Pillow alone have many for damaged bytes
        raise UserError(f"{failure} ({reason(error)}): {advice}") from error


def shown(value: Any) -> str:
    """Return a short text for a value: the name of a function or class, otherwise its repr in one line."""
    return getattr(value, "__qualname__", " ".join(reprlib.repr(value).split()))
