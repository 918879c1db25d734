"""Report what was compared and checked, and what was not.

A report prints as text, has `to_json`, and in a test `require` raises its text.
"""

import json
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Collection, Sequence
from typing import Literal, NamedTuple

from pmapdp.errors import UserError
from pmapdp.verify.mistakes import MISTAKES, Fact, find_address

Status = Literal["passed", "FAILED", "not compared", "not checked"]
# A file whose path has one of these parts isn't in your program.
LIBRARIES = (
    "site-packages",
    "dist-packages",
    "<frozen",
    os.path.dirname(os.__file__),
    os.path.dirname(__file__),
)
MAX_MISTAKES = 3  # the report explains at most so many usual mistakes
WIDTH = 100  # characters in a line
INDENT = " " * 13  # of the lines below the name of a check


class VerificationError(AssertionError):
    """The step differs from its reference, or something was not compared.

    The message is the report.
    """


class ArgumentsError(UserError, ValueError):
    """The arguments of `verify` can't be used. The message is one sentence."""


class CheckError(Exception):
    """A check can't be made, or the step can't be run. The message says why.

    The report shows the check with this `status`.
    """

    def __init__(self, message: str, status: Status = "not checked"):
        super().__init__(message)
        self.status = status


def describe_error(error: BaseException) -> str:
    """Return an error's message, and which line of your program raised it.

    For example `it raises an error, file.py:12 in loss: TypeError: x`. The message of a
    `CheckError` is a whole sentence already.
    """
    if isinstance(error, CheckError):
        return str(error)
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not any(library in frame.filename for library in LIBRARIES):
            where = f"{frame.filename}:{frame.lineno} in {frame.name}: "
    return f"it raises an error, {where}{type(error).__name__}: {str(error).strip()}"


class Check(NamedTuple):
    """A check is one question to the step, with its answer: a line of the report.

    Attributes:
        name: Its name, such as "same update".
        status: Its result.
        devices: The number of devices, or 0 if it doesn't matter.
        sentence: What differs, or why it could not be checked.
        facts: What the experiments showed.
        leaves: For each leaf, its largest error and the error that rounding allows. A
            failed check has only the wrong leaves.
        update: The number of the first wrong update, from 1.
    """

    name: str
    status: Status
    devices: int = 0
    sentence: str = ""
    facts: Sequence[Fact] = ()
    leaves: dict[str, tuple[float, float]] | None = None
    update: int = 0

    @property
    def mistakes(self) -> list[str]:
        """The names of the usual mistakes that the facts point to, each once."""
        names = [fact.mistake for fact in self.facts if fact.mistake]
        return list(dict.fromkeys(names))

    @classmethod
    def from_error(
        cls, name: str, devices: int, error: Exception, status: Status
    ) -> "Check":
        """Make a check from an error. A `CheckError` has a status of its own."""
        if isinstance(error, CheckError):
            status = error.status
        return cls(name, status, devices, describe_error(error))

    def __str__(self) -> str:
        text = f"{self.status:<12} {self.name}"
        if self.devices:
            text += f" ({count(self.devices, 'device')})"
        if self.sentence or self.leaves:
            text += ":"
        if self.sentence:
            text += f" {self.sentence}"
        if self.leaves:
            text += f" {self.describe_largest()}"
        lines = [wrap(text, INDENT)]
        sentences = [f"{INDENT}- {fact.sentence}" for fact in self.facts]
        lines += [wrap(sentence, f"{INDENT}  ") for sentence in sentences]
        return "\n".join(lines)

    def describe_largest(self) -> str:
        """Say which leaf is farthest from the reference."""
        leaves = self.leaves or {}
        worst = max(leaves, key=lambda name: leaves[name])
        error, allowed = leaves[worst]
        where = worst
        if self.update:
            where += f" after update {self.update}"
        return (
            f"Largest difference: {error:.2g} in {where}; rounding allows "
            f"{allowed:.1g}."
        )


class Report(NamedTuple):
    """A report holds the findings of `verify`.

    Attributes:
        checks: All checks, also those that could not be made.
        kinds: How each leaf was compared: "close" (within rounding) or "exact". Leaves
            that are "unstable" hold only rounding noise, and were not compared. Leaves
            that are "per_device" weren't compared either.
        devices: The number of devices on which the step ran.
        updates: The number of updates that were compared.
        precision: The type of the computation, and why it was not float64.
        unseen: A sentence that says what this reference can't show.
        exchange: The collectives of an update: how many, and how large. If the state
            has `params`, the size of their gradients, too.

    Example:
        if not report.ok:
            for check in report.failed:
                print(check)
    """

    checks: list[Check]
    kinds: dict[str, str]
    devices: int
    updates: int
    precision: str
    unseen: str = ""
    exchange: str = ""

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status == "FAILED"]

    @property
    def missing(self) -> list[Check]:
        """The checks of things that could not be compared, so nothing is proven."""
        return [check for check in self.checks if check.status == "not compared"]

    @property
    def verdict(self) -> str:
        """`failed`, `passed`, or `incomplete` if something was not compared."""
        if self.failed:
            return "failed"
        if self.missing:
            return "incomplete"
        return "passed"

    @property
    def ok(self) -> bool:
        """True if nothing failed, and every update was compared on several devices."""
        return self.verdict == "passed"

    @property
    def mistakes(self) -> list[str]:
        """The names of the usual mistakes that fit the facts, each once."""
        names = []
        for check in self.failed:
            names += check.mistakes
        return list(dict.fromkeys(names))

    @property
    def unstable(self) -> list[str]:
        """The leaves that were not compared, because they hold only rounding noise."""
        return [name for name in self.kinds if self.kinds[name] == "unstable"]

    def require(self, not_compared: Collection[str] = ()) -> None:
        """Raise an error if a check failed or something was not compared.

        Args:
            not_compared: The unstable leaves that you accept.

        Raises:
            VerificationError: The message is the report.
        """
        missing = self.missing
        if self.unstable and set(self.unstable) <= set(not_compared):
            missing = [check for check in missing if check.name != "every leaf"]
        if self.failed or missing:
            raise VerificationError(f"\n{self}")

    def __str__(self) -> str:
        lines = []
        if self.updates and self.precision != "float64":
            note = (
                f"Note: computed in {self.precision}. In float64, tolerances would be "
                "a thousand times narrower."
            )
            lines.append(wrap(note))
        lines += [str(check) for check in self.failed]
        lines += [wrap(text) for text in self.describe_mistakes()]
        for check in self.checks:
            if check.status in ("passed", "not compared"):
                lines.append(str(check))
        lines += [wrap(text) for text in self.describe_limits()]
        lines.append(wrap(self.conclude()))
        return "\n".join(lines)

    def describe_mistakes(self) -> list[str]:
        """Say which usual mistakes fit the facts, and where to read about them."""
        if self.updates and self.failed and not self.mistakes:
            return ["None of the usual mistakes fits what was found."]
        return [
            f"This fits {name!r} of the usual mistakes: usually {MISTAKES[name]}. "
            "What to write, and when it's intended: "
            f"docs/mistakes.md#{find_address(name)} in pmapdp's repository"
            for name in self.mistakes[:MAX_MISTAKES]
        ]

    def describe_limits(self) -> list[str]:
        """Say what was compared and exchanged, and what was not."""
        lines = []
        if self.updates:
            kinds = list(self.kinds.values())
            lines.append(
                f"Leaves compared on {count(self.devices, 'device')}, in "
                f"{count(self.updates, 'update')}: {kinds.count('close')} up to "
                f"rounding, {kinds.count('exact')} exactly."
            )
        left_out = [name for name in self.kinds if self.kinds[name] == "per_device"]
        if left_out:
            names = ", ".join(left_out)
            lines.append(f"Not compared, because per_device names them: {names}.")
        unchecked = [
            f"{check.name} ({check.sentence})"
            for check in self.checks
            if check.status == "not checked"
        ]
        if unchecked:
            lines.append(f"Not checked: {'; '.join(unchecked)}.")
        if self.exchange:
            lines.append(f"The devices exchange in an update: {self.exchange}.")
        if self.unseen:
            lines.append(f"Can't see: {self.unseen}")
        return lines

    def conclude(self) -> str:
        """Return the last line."""
        total = sum(check.status in ("passed", "FAILED") for check in self.checks)
        if self.failed:
            return (
                f"{len(self.failed)} of {total} checks FAILED. One mistake can hide "
                "others: correct it and verify again."
            )
        if self.missing:
            names = ", ".join(check.name for check in self.missing)
            return f"NOT PROVEN: {total} checks passed, but not compared: {names}."
        return f"All {total} checks passed."

    def to_json(self) -> str:
        """Return the report as JSON."""
        checks = []
        for check in self.checks:
            sentences = [fact.sentence for fact in check.facts]
            values = check._asdict() | {"facts": sentences, "mistakes": check.mistakes}
            checks.append(values)
        report = {
            "ok": self.ok,
            "verdict": self.verdict,
            "mistakes": self.mistakes,
            **self._asdict(),
            "checks": checks,
        }
        return json.dumps(report, indent=2)


def count(number: int, noun: str) -> str:
    """Return `1 device` or `8 devices`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}s"


def wrap(text: str, indent: str = "") -> str:
    """Break lines after 100 characters, or at the terminal's width if it's smaller."""
    width = WIDTH
    if sys.stdout.isatty():
        width = min(WIDTH, shutil.get_terminal_size().columns)
    lines = [
        textwrap.fill(
            line,
            width,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.split("\n")
    ]
    return f"\n{indent}".join(lines)
