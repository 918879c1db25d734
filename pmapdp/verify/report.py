"""Report what was compared and checked, and what was not: as text, as JSON, or as an assertion in a test."""

import json
import textwrap
from collections.abc import Collection
from typing import Any, Literal, NamedTuple

from pmapdp.errors import UserError

Status = Literal["passed", "FAILED", "not compared", "not checked"]


class VerificationError(AssertionError):
    """The step does not do what its reference does, or that was not compared; the message is the report."""


class ArgumentsError(UserError, ValueError):
    """Arguments of `verify` that cannot be used, in one sentence."""


class CheckError(Exception):
    """A check that cannot be made, or a step that cannot be run: why, and what the report makes of it."""

    def __init__(self, message: str, status: Status = "not checked"):
        super().__init__(message)
        self.status = status


class Check(NamedTuple):
    """One check."""

    name: str
    status: Status
    devices: tuple[int, ...] = ()  # the numbers of devices for which this holds
    sentence: str = ""  # what is wrong, its usual cause and its cure; or why it could not be checked
    cause: str = ""  # its name in docs/mistakes.md
    # How far each leaf (each wrong one of a check that failed) is from the reference at
    # most, and what rounding allows.
    leaves: dict[str, tuple[float, float]] | None = None
    update: int = 0  # number of the first wrong update, from 1

    def __str__(self) -> str:
        counts = ", ".join(map(str, self.devices))
        on = f" ({counts} device{'s' * (counts != '1')})" if counts else ""
        text = f"{self.status:<12} {self.name}{on}" + (
            f": {self.sentence}" if self.sentence else ""
        )
        if self.leaves:
            worst, (difference, tolerance) = max(
                self.leaves.items(), key=lambda leaf: leaf[1]
            )
            text += f"{':' * (not self.sentence)} Largest difference: {difference:.2g} in {worst}"
            text += (
                f" after update {self.update}" * bool(self.update)
                + f"; rounding allows {tolerance:.1g}."
            )
        return wrap(text, " " * 13)


class Report(NamedTuple):
    """The findings of `verify`."""

    checks: list[Check]
    kinds: dict[
        str, str
    ]  # of the leaves: "close" and "exact" were compared, "blind" and "ignored" were not
    updates: dict[
        int, tuple[int, ...]
    ]  # the number of each, from 1: on which numbers of devices it was compared
    precision: str  # the type in which it was computed, and why it was not float64

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status == "FAILED"]

    @property
    def missing(self) -> list[Check]:
        """Return the checks of what could not be compared, leaves or updates, so that nothing is proven about it."""
        return [check for check in self.checks if check.status == "not compared"]

    @property
    def verdict(self) -> str:
        """`failed`, `passed`, or `incomplete` if something was not compared."""
        return "failed" if self.failed else "incomplete" if self.missing else "passed"

    @property
    def ok(self) -> bool:
        """No check failed, and everything was compared on several devices in every update."""
        return self.verdict == "passed"

    @property
    def causes(self) -> list[str]:
        """The names of the causes found, each once, without those that follow from another."""
        return list(
            dict.fromkeys(
                check.cause for check in self.failed if check.cause != "follows"
            )
        )

    def require(self, not_compared: Collection[str] = ()) -> None:
        """Raise a `VerificationError` if a check failed or something was not compared; its message is the report.

        `not_compared` names the leaves that need not be compared, because rounding
        hides them.
        """
        blind = {name for name, kind in self.kinds.items() if kind == "blind"}
        accepted = "every leaf" if blind and blind <= set(not_compared) else ""
        if self.failed or any(check.name != accepted for check in self.missing):
            raise VerificationError(f"\n{self}")

    def __str__(self) -> str:
        made = sum(check.status in ("passed", "FAILED") for check in self.checks)
        last = (
            f"{len(self.failed)} of {made} checks FAILED"
            if self.failed
            else f"All {made} checks passed"
        )
        if self.verdict == "incomplete":
            lacking = ", ".join(check.name for check in self.missing)
            last = f"NOT PROVEN: {made} checks passed, but not compared: {lacking}"
        last += (
            ". One mistake can hide others: correct it and verify again."
            if self.failed
            else "."
        )
        note = f"Note: computed in {self.precision}. In float64, tolerances would be a thousand times narrower."
        unchecked = "; ".join(
            f"{c.name} ({c.sentence})" for c in self.checks if c.status == "not checked"
        )
        shown = [wrap(note)] * (self.precision != "float64")
        shown += [str(check) for check in self.checks if check.status != "not checked"]
        shown += [wrap(f"Not checked: {unchecked}.")] * bool(unchecked)
        close, exact, own = (
            [n for n in self.kinds if self.kinds[n] == kind]
            for kind in ("close", "exact", "ignored")
        )
        on = "; ".join(
            f"{n} on {', '.join(map(str, counts)) or 'none'}"
            for n, counts in self.updates.items()
        )
        shown += [
            f"Compared: {len(close)} leaves within rounding, {len(exact)} exactly. Updates, devices: {on}."
        ]
        shown += [
            f"Not compared, because per_device names them: {', '.join(own)}."
        ] * bool(own)
        return "\n".join([*shown, last])

    def to_json(self) -> str:
        """Return the report as JSON."""
        found: dict[str, Any] = {
            "ok": self.ok,
            "verdict": self.verdict,
            "causes": self.causes,
            **self._asdict(),
        }
        return json.dumps(
            found | {"checks": [check._asdict() for check in self.checks]}, indent=2
        )


def wrap(text: str, indent: str = "") -> str:
    """Break a text into lines of at most 100 characters."""
    return textwrap.fill(
        text,
        100,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
