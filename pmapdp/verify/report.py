"""Report what was compared and checked, and what was not.

The report is text, JSON, or an assertion in a test.
"""

import json
import os
import textwrap
import traceback
from collections.abc import Collection
from typing import Any, Literal, NamedTuple

from pmapdp.errors import UserError
from pmapdp.verify.mistakes import MISTAKES

Status = Literal["passed", "FAILED", "not compared", "not checked"]
# Parts of the paths of files that aren't your program.
LIBRARIES = (
    "site-packages",
    "dist-packages",
    "<frozen",
    os.path.dirname(os.__file__),
    os.path.dirname(__file__),
)
MOST_ROWS = 3  # of the usual mistakes
INDENT = " " * 13  # of what stands below the name of a check


class VerificationError(AssertionError):
    """The step differs from its reference, or that was not compared.

    The message is the report.
    """


class ArgumentsError(UserError, ValueError):
    """Arguments of `verify` that cannot be used, in one sentence."""


class CheckError(Exception):
    """A check that cannot be made, or a step that cannot be run: why.

    `status` is what the report makes of it.
    """

    def __init__(self, message: str, status: Status = "not checked"):
        super().__init__(message)
        self.status = status


def describe_error(error: BaseException) -> str:
    """Return what a check found, or where in your program an error arose.

    For example `file.py:12 in loss: TypeError: x`.
    """
    if isinstance(error, CheckError):
        return str(error)
    where = ""
    for frame in traceback.extract_tb(error.__traceback__):
        if not any(library in frame.filename for library in LIBRARIES):
            where = f"{frame.filename}:{frame.lineno} in {frame.name}: "
    return f"it raises an error, {where}{type(error).__name__}: {str(error).strip()}"


class Check(NamedTuple):
    """One check.

    Attributes:
        name: What was checked.
        status: What came out.
        devices: How many, if that matters.
        sentence: What differs, or why it could not be checked.
        facts: What the experiments showed, a sentence each.
        rows: The rows of docs/mistakes.md whose rules these facts fit.
        leaves: How far each leaf (each wrong one of a check that failed) is from the
            reference at most, and what rounding allows.
        update: The number of the first wrong update, from 1.
    """

    name: str
    status: Status
    devices: int = 0
    sentence: str = ""
    facts: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    leaves: dict[str, tuple[float, float]] | None = None
    update: int = 0

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
        lines += [wrap(f"{INDENT}- {fact}", f"{INDENT}  ") for fact in self.facts]
        return "\n".join(lines)

    def describe_largest(self) -> str:
        """Say which leaf is farthest from the reference."""
        leaves = self.leaves or {}
        worst = max(leaves, key=lambda name: leaves[name])
        error, allowed = leaves[worst]
        after = f" after update {self.update}" if self.update else ""
        return (
            f"Largest difference: {error:.2g} in {worst}{after}; rounding allows "
            f"{allowed:.1g}."
        )


class Report(NamedTuple):
    """The findings of `verify`.

    Attributes:
        checks: Those that were made, and those that could not be.
        kinds: How each leaf was compared: "close" within rounding, or "exact". Not
            compared were the "unstable", which rounding decides, and the "per_device".
        devices: On how many the step ran.
        updates: How many were compared, from the first on.
        precision: The type in which it was computed, and why it was not float64.
        unseen: What this reference can't show.
        exchange: What the devices exchange in an update.
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
        return "incomplete" if self.missing else "passed"

    @property
    def ok(self) -> bool:
        """No check failed, and all was compared on several devices in every update."""
        return self.verdict == "passed"

    @property
    def rows(self) -> list[str]:
        """The rows of docs/mistakes.md that fit the facts, each once."""
        rows: dict[str, None] = {}
        for check in self.failed:
            rows |= dict.fromkeys(check.rows)
        return list(rows)

    @property
    def unstable(self) -> list[str]:
        """The leaves that were not compared, because rounding decides them."""
        return [name for name in self.kinds if self.kinds[name] == "unstable"]

    def require(self, not_compared: Collection[str] = ()) -> None:
        """Raise an error if a check failed or something was not compared.

        Args:
            not_compared: The leaves that need not be compared, because rounding decides
                them.

        Raises:
            VerificationError: With the report as its message.
        """
        accepted = ""
        if self.unstable and set(self.unstable) <= set(not_compared):
            accepted = "every leaf"
        if self.failed or any(check.name != accepted for check in self.missing):
            raise VerificationError(f"\n{self}")

    def __str__(self) -> str:
        lines = []
        if self.precision != "float64":
            lines.append(
                wrap(
                    f"Note: computed in {self.precision}. In float64, tolerances would "
                    "be a thousand times narrower."
                )
            )
        unchecked = []
        for check in self.checks:
            if check.status == "not checked":
                unchecked.append(f"{check.name} ({check.sentence})")
            else:
                lines.append(str(check))
        lines += self.describe_rows()
        if unchecked:
            lines.append(wrap(f"Not checked: {'; '.join(unchecked)}."))
        lines += self.describe_compared()
        if self.exchange:
            lines.append(wrap(f"The devices exchange in an update: {self.exchange}."))
        if self.unseen:
            lines.append(wrap(f"Can't see: {self.unseen}"))
        lines.append(self.conclude())
        return "\n".join(lines)

    def describe_rows(self) -> list[str]:
        """Say which usual mistakes look like the facts."""
        lines = []
        for name in self.rows[:MOST_ROWS]:
            row = MISTAKES[name]
            text = (
                f"This fits {name!r} of the usual mistakes: usually {row.usually}. "
                "What to write, and what it is if the program is correct: "
                f"docs/mistakes.md#{row.anchor}"
            )
            lines.append(wrap(text))
        if self.failed and not self.rows:
            lines.append("No row of docs/mistakes.md fits these facts.")
        return lines

    def describe_compared(self) -> list[str]:
        """Say how many leaves were compared, and how often."""
        kinds = list(self.kinds.values())
        lines = [
            f"Compared on {count(self.devices, 'device')} after each of "
            f"{count(self.updates, 'update')}: {kinds.count('close')} leaves within "
            f"rounding, {kinds.count('exact')} exactly."
        ]
        left_out = [name for name in self.kinds if self.kinds[name] == "per_device"]
        if left_out:
            names = ", ".join(left_out)
            text = f"Not compared, because per_device names them: {names}."
            lines.append(wrap(text))
        return lines

    def conclude(self) -> str:
        """Return the last line."""
        made = sum(check.status in ("passed", "FAILED") for check in self.checks)
        if self.failed:
            return (
                f"{len(self.failed)} of {made} checks FAILED. One mistake can hide "
                "others: correct it and verify again."
            )
        if self.missing:
            names = ", ".join(check.name for check in self.missing)
            return f"NOT PROVEN: {made} checks passed, but not compared: {names}."
        return f"All {made} checks passed."

    def to_json(self) -> str:
        """Return the report as JSON."""
        checks = [check._asdict() for check in self.checks]
        values: dict[str, Any] = {
            "ok": self.ok,
            "verdict": self.verdict,
            "rows": self.rows,
            **self._asdict(),
            "checks": checks,
        }
        return json.dumps(values, indent=2)


def count(number: int, noun: str) -> str:
    """Return `1 device` or `8 devices`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def wrap(text: str, indent: str = "") -> str:
    """Break each line of a text into lines of at most 100 characters."""
    lines = []
    for line in text.split("\n"):
        broken = textwrap.fill(
            line,
            100,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines.append(broken)
    return f"\n{indent}".join(lines)
