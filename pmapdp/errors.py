"""Errors that you can correct.

Each has a message of one line: the bad value, the reason, and a value that works.
`cli.py` prints the messages. From Python they are ordinary exceptions.
"""

import contextlib
import difflib
import re
import reprlib
from collections.abc import Iterable, Iterator
from typing import Any

# A flag in a message, and the space before a number or a quoted value.
FLAG = re.compile(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)( (?=-?\d|'))?")
LONGEST_MESSAGE = 10_000  # characters
# What to try if training diverges.
DIVERGED_ADVICE = "try a lower --learning-rate, --warmup-steps 100, or --clip-norm 1"


class UserError(Exception):
    """A mistake in what was asked for.

    Messages name settings by their flags, as in `--epochs 5`. Commands print them like
    this, and end with `status`. Python shows `str(error)`, which has the names of the
    settings in Python instead, as in `epochs=5`.
    """

    status = 2
    shows_cause = False  # commands print the traceback of `__cause__` first

    @property
    def message(self) -> str:
        """The message with flags, in one line."""
        return in_one_line(super().__str__())

    def __str__(self) -> str:
        return FLAG.sub(name_in_python, self.message)


class YourCodeError(UserError):
    """Your model, loss or file raised an error, which is the cause of this one."""

    shows_cause = True


class FailedError(UserError):
    """The program that a command has looked at is wrong."""

    status = 1


class DivergedError(UserError):
    """A loss or the state is not finite.

    Attributes:
        step: The update with that training loss, or 0 for anything else.
        losses: (step, loss) of the updates up to it, at most 100.
    """

    status = 3

    def __init__(
        self, message: str, step: int = 0, losses: Iterable[tuple[int, float]] = ()
    ):
        super().__init__(message)
        self.step = step
        self.losses = list(losses)


# A KeyboardInterrupt, so that `except Exception` doesn't go on after Ctrl-C.
class StoppedError(KeyboardInterrupt):
    """A signal ended the run in good order.

    Attributes:
        status: 128 + the number of the signal.
        state: The train state, if no checkpoint has it.
    """

    def __init__(self, message: str, status: int, state: Any = None):
        super().__init__(message)
        self.status = status
        self.state = state


def name_in_python(match: re.Match[str]) -> str:
    """Return a setting's name in Python, as in `learning_rate=0.1`."""
    name = match[1].replace("-", "_")
    return f"{name}=" if match[2] else name


def in_one_line(text: str) -> str:
    """Return a text as one line.

    Line breaks and characters that steer a terminal are shown, not obeyed.
    """
    characters = []
    for character in text:
        is_safe = character.isprintable()
        characters.append(character if is_safe else ascii(character)[1:-1])
    line = "".join(characters)
    if len(line) > LONGEST_MESSAGE:
        half = LONGEST_MESSAGE // 2
        line = f"{line[:half]}...{line[-half:]}"
    return line


def unknown_name(kind: str, value: str, choices: Iterable[str]) -> UserError:
    """Make the error for a name that doesn't exist, with a suggestion.

    `kind` says what the names are, for example "strategy".
    """
    names = list(choices)
    similar = [name for name in names if name.startswith(value)]
    similar += difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    hint = f"did you mean {similar[0]!r}? " if similar else ""
    return UserError(
        f"unknown {kind} {value!r:.100}: {hint}choose from {', '.join(names)}"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its class if it has none."""
    message = getattr(error, "strerror", None) or str(error)
    if isinstance(error, KeyError):
        message = f"no {error}"
    for line in message.splitlines():
        if line.strip():
            return line.strip()[:1000]
    return type(error).__name__


@contextlib.contextmanager
def explain_errors(
    failure: str, advice: str, error_class: type[UserError] = UserError
) -> Iterator[None]:
    """Turn an error into a message: the `failure`, its reason, and the `advice`.

    For an error of your code the `error_class` is `YourCodeError`, so that its
    traceback is shown too.
    """
    try:
        yield
    except UserError:
        raise
    # NumPy, zipfile, gzip and Pillow alone have many classes for damaged bytes.
    except Exception as error:
        raise error_class(f"{failure} ({first_line(error)}): {advice}") from error


def name_or_repr(value: Any) -> str:
    """Return the name of a function or class, or another value's repr in one line."""
    return getattr(value, "__qualname__", " ".join(reprlib.repr(value).split()))
