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

# A flag in a message. Dashes inside a word belong to the name of a file.
FLAG = r"(?<![\w-])--[a-z-]*[a-z]"
# Flags that take a name, such as `--model cnn`. The word after one is its value.
NAMES = (
    "dataset|model|dtype|strategy|mesh|layout|shard-state|optimizer|schedule|"
    "scale-learning-rate"
)
NAME_FLAG = rf"(?<![\w-])--(?:{NAMES})"
# A number, up to the end of its word.
NUMBER = r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![^\s,:;)])"
# Another value without quotes, such as a path or `lowest:loss`. A slash, dot or colon
# in it tells it from the next word of the sentence.
TEXT = rf"(?!{NUMBER})[^\s'\"]*[/.:][^\s'\"]*(?<![,:;)])"
# Below it a suggested name would usually mean something else: dropout is no layout.
LEAST_SIMILARITY = 0.7
# What to try if training diverges.
DIVERGED_ADVICE = (
    "try a lower --learning-rate (in a schedule of yours, lower rates), "
    "--warmup-steps 100, or --clip-norm 1"
)


class UserError(Exception):
    """You can correct this error, and its message says how.

    Messages name settings by their flags, as in `--epochs 5`. Commands print them like
    this, and end with `status`. Python shows `str(error)`, which has the names of the
    settings in Python instead, as in `epochs=5`.

    Args:
        message: The message.
        quote: Words of another error that the message repeats. They stay as they are,
            because a flag in them isn't ours.
    """

    status = 2

    def __init__(self, message: str, quote: str = ""):
        super().__init__(message)
        self.quote = in_one_line(quote)

    @property
    def message(self) -> str:
        """The message with flags, in one line."""
        return in_one_line(super().__str__())

    def __str__(self) -> str:
        if not self.quote:
            return flags_to_arguments(self.message)
        before, quote, after = self.message.partition(self.quote)
        return flags_to_arguments(before) + quote + flags_to_arguments(after)


class YourCodeError(UserError):
    """Your model, loss or file raised an error, which is the cause of this one.

    Commands print its traceback before the message.
    """


class FailedError(UserError):
    """The program that a command has looked at is wrong."""

    status = 1


class DivergedError(UserError):
    """Training ended because a loss or the state isn't finite.

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
    """A signal stopped the run cleanly.

    Attributes:
        status: 128 + the number of the signal.
        state: The train state, if no checkpoint has it.
    """

    def __init__(self, message: str, status: int, state: Any = None):
        super().__init__(message)
        self.status = status
        self.state = state

    def __str__(self) -> str:
        return flags_to_arguments(super().__str__())


def flags_to_arguments(message: str) -> str:
    """Write the flags in a message as keyword arguments, for callers from Python.

    Both a command and your program may get a message that names a setting. So messages
    have flags, and this is the one place that rewrites them.

    `--warmup-steps 5` becomes `warmup_steps=5`, `--switch-epochs 3 7` becomes
    `switch_epochs=(3, 7)`, `--strategy jit` becomes `strategy="jit"`, `--workdir a/b`
    becomes `workdir="a/b"`, and `--workdir` becomes `workdir`.
    """
    message = re.sub(rf"({FLAG}) (\d+) (\d+)", r"\1=(\2, \3)", message)
    message = re.sub(rf"({FLAG}) ({TEXT})", r'\1="\2"', message)
    message = re.sub(rf"({NAME_FLAG}) ([\w=,+]*\w)", r'\1="\2"', message)
    message = re.sub(rf"({FLAG}) (?={NUMBER}|')", r"\1=", message)
    return re.sub(FLAG, lambda flag: flag[0][2:].replace("-", "_"), message)


def in_one_line(text: str) -> str:
    """Return a text as one line.

    Line breaks and characters that steer a terminal are shown, not obeyed.
    """
    characters = []
    for character in text:
        if not character.isprintable():
            character = ascii(character).strip("'")
        characters.append(character)
    return "".join(characters)


def unknown_name(noun: str, name: str, choices: Iterable[str]) -> UserError:
    """Make the error for a name that doesn't exist, with a suggestion.

    Args:
        noun: The word for what has the name, for example "strategy".
        name: The name that doesn't exist.
        choices: The names that do.
    """
    # Without the dashes, which all flags have in common.
    words = {choice.lstrip("-"): choice for choice in choices}
    word = name.lstrip("-")
    similar = [choice for choice in words if choice.startswith(word)]
    similar += difflib.get_close_matches(word, words, n=1, cutoff=LEAST_SIMILARITY)
    hint = ""
    if similar:
        hint = f"did you mean {words[similar[0]]!r}? "
    return UserError(
        f"unknown {noun} {name!r:.100}: {hint}choose from {', '.join(words.values())}"
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
        reason = first_line(error)
        message = f"{failure} ({reason}): {advice}"
        raise error_class(message, quote=reason) from error


def name_or_repr(value: Any) -> str:
    """Return the name of a function or class, or another value's repr in one line."""
    return getattr(value, "__qualname__", " ".join(reprlib.repr(value).split()))
