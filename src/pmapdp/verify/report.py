"""The report: every check with what it found, to print, to require in a test, or as JSON."""

import json
from typing import NamedTuple

from pmapdp.errors import UserError

PASSED, FAILED, NOT_CHECKED = "passed", "FAILED", "not checked"


class VerificationError(AssertionError):
    """The step does not do what its reference does; the message is the report."""


class ArgumentsError(UserError, ValueError):
    """Arguments of `verify` that cannot be used, in one sentence."""


class NotCheckedError(Exception):
    """A check cannot be made; the message says why."""

    cause = ""


class StepFailedError(NotCheckedError):
    """The step raised an error, or returned something other than its reference: one sentence, and its cause."""

    def __init__(self, message: str, cause: str = "error"):
        super().__init__(message)
        self.cause = cause


class Check(NamedTuple):
    """One check."""

    name: str
    status: str  # passed, FAILED or not checked
    devices: tuple[int, ...] = ()  # the numbers of devices for which this holds
    sentence: str = ""  # what is wrong, its usual cause and its cure; or why it could not be checked
    cause: str = ""  # its name in the table of mistakes.md
    # How far each leaf (each wrong one where it failed) is from the reference at most, and what rounding allows.
    leaves: dict[str, tuple[float, float]] | None = None
    update: int = 0  # number of the first wrong update, from 1; 0 where it does not apply

    def __str__(self) -> str:
        counts = ", ".join(map(str, self.devices))
        on = f" ({counts} device{'s' * (counts != '1')})" if counts else ""
        text = f"{self.status:<12} {self.name}{on}" + (f": {self.sentence}" if self.sentence else "")
        if self.leaves:
            worst = max(self.leaves, key=lambda name: self.leaves[name][0])  # type: ignore[index]
            difference, tolerance = self.leaves[worst]
            when = f" after update {self.update}" if self.update else ""
            text += f"\n{'':13}Largest difference: {difference:.2g} in {worst}{when}; rounding allows {tolerance:.1g}."
            text += f" Wrong leaves: {len(self.leaves)}." * (self.status == FAILED)
        return text


class Report(NamedTuple):
    """What `verify` found."""

    checks: list[Check]  # in the order of printing
    precision: str  # the type in which it was computed, and why not float64 where that is so
    seconds: float  # that it took

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status == FAILED]

    @property
    def causes(self) -> list[str]:
        """The names of the causes found, each once, without those that follow from another."""
        return list(dict.fromkeys(check.cause for check in self.failed if check.cause not in ("", "follows")))

    def require(self) -> None:
        """Raise a `VerificationError`, whose message is the report, where a check failed."""
        if not self.ok:
            raise VerificationError(f"\n{self}")

    def __str__(self) -> str:
        checked = sum(check.status != NOT_CHECKED for check in self.checks)
        last = f"{len(self.failed)} of {checked} checks FAILED" if self.failed else f"All {checked} checks passed"
        last += f", computed in {self.precision}, in {self.seconds:.0f} s."
        last += " One mistake can hide others: correct it and verify again." * bool(self.failed)
        return "\n".join([*map(str, self.checks), last])

    def to_json(self) -> str:
        """The report as JSON: `ok`, `precision`, `seconds`, and the fields of each check."""
        checks = [check._asdict() for check in self.checks]
        return json.dumps({"ok": self.ok} | self._asdict() | {"checks": checks}, indent=2, default=str)
