"""The report: what was compared and checked, and what was not; to print, to require in a test, or as JSON."""

import json
from collections.abc import Collection
from typing import Any, NamedTuple

from pmapdp.errors import UserError

PASSED, FAILED, NOT_COMPARED, NOT_CHECKED = "passed", "FAILED", "not compared", "not checked"


class VerificationError(AssertionError):
    """The step does not do what its reference does, or that was not compared; the message is the report."""


class ArgumentsError(UserError, ValueError):
    """Arguments of `verify` that cannot be used, in one sentence."""


class NotCheckedError(Exception):
    """A check cannot be made; the message says why."""

    cause, status = "", NOT_CHECKED


class NotProvenError(NotCheckedError):
    """A check cannot be made of what is given, and without it the report is not ok; the message says what to give."""

    status = NOT_COMPARED


class StepFailedError(NotCheckedError):
    """The step raised an error, or returned something other than its reference: one sentence, and its cause."""

    def __init__(self, message: str, cause: str = "error"):
        super().__init__(message)
        self.cause = cause


class Check(NamedTuple):
    """One check."""

    name: str
    status: str  # passed, FAILED, not compared or not checked
    devices: tuple[int, ...] = ()  # the numbers of devices for which this holds
    sentence: str = ""  # what is wrong, its usual cause and its cure; or why it could not be checked
    cause: str = ""  # its name in the table of mistakes
    # How far each leaf (each wrong one where it failed) is from the reference at most, and what rounding allows.
    leaves: dict[str, tuple[float, float]] | None = None
    update: int = 0  # number of the first wrong update, from 1; 0 where it does not apply

    def __str__(self) -> str:
        counts = ", ".join(map(str, self.devices))
        on = f" ({counts} device{'s' * (counts != '1')})" if counts else ""
        text = f"{self.status:<12} {self.name}{on}" + (f": {self.sentence}" if self.sentence else "")
        if self.leaves and self.status in (PASSED, FAILED):
            worst = max(self.leaves, key=lambda name: self.leaves[name])  # type: ignore[index]
            difference, tolerance = self.leaves[worst]
            when = f" after update {self.update}" if self.update else ""
            text += f"\n{'':13}Largest difference: {difference:.2g} in {worst}{when}; rounding allows {tolerance:.1g}."
            text += f" Wrong leaves: {len(self.leaves)}." * (self.status == FAILED)
        return text


class Compared(NamedTuple):
    """What was compared: of the state and the metrics, in which updates, on how many devices."""

    leaves: tuple[str, ...] = ()  # compared, each within its own tolerance
    exactly: tuple[str, ...] = ()  # keys, whole numbers and truth values, which were compared exactly
    still: tuple[str, ...] = ()  # that rounding alone moves, in both
    loose: dict[str, float] | None = None  # the tolerance beside the leaf's own update, where it is more than 5 %
    blind: dict[str, float] | None = None  # the same, more than 30 %: these leaves are not compared
    per_device: tuple[str, ...] = ()  # not compared, because they belong to a device and the reference has one
    updates: dict[int, tuple[int, ...]] | None = (
        None  # by the number of the update, from 1: on which numbers of devices
    )
    examples: tuple[int, ...] = ()  # in each update
    loosest: tuple[str, float] = ("", 0.0)  # of the leaves that were compared, and its tolerance beside its update

    def __str__(self) -> str:
        updates = self.updates or {}
        groups: dict[tuple[int, ...], list[int]] = {}
        for number, counts in updates.items():
            groups.setdefault(counts, []).append(number)
        on = "; ".join(
            f"update{'s' * (len(which) > 1)} {listed(which)} on {listed(counts) or 'no'} device{'s' * (counts != (1,))}"
            for counts, which in groups.items()
        )
        lines = [f"Compared: {len(self.leaves)} leaves within rounding, {len(self.exactly)} exactly; {on}."]
        if self.loosest[0]:
            lines[0] += f" Loosest tolerance: {self.loosest[1]:.2g} of the update of {self.loosest[0]}."
        if self.loose:
            lines.append(f"Loosely compared, for rounding is more than 5 % of their update: {shares(self.loose)}.")
        if self.still:
            lines.append(f"Moved by rounding alone, in both: {some(self.still)}.")
        if self.per_device:
            lines.append(f"Not compared, because per_device names them: {some(self.per_device)}.")
        return "\n".join(lines)


def listed(numbers: Collection[int]) -> str:
    """Numbers with commas."""
    return ", ".join(map(str, numbers))


def some(names: Collection[str]) -> str:
    """The first five names, and how many there are besides."""
    return ", ".join(list(names)[:5]) + f" and {len(names) - 5} more" * (len(names) > 5)


def shares(leaves: dict[str, float]) -> str:
    """The names of leaves with their tolerances beside their updates."""
    return some([f"{name} ({share:.0%})" for name, share in sorted(leaves.items(), key=lambda item: -item[1])])


class Report(NamedTuple):
    """What `verify` found."""

    checks: list[Check]  # in the order of printing
    compared: Compared
    precision: str  # the type in which it was computed, and why not float64 where that is so
    seconds: float  # that it took

    @property
    def ok(self) -> bool:
        """Whether no check failed, and everything was compared on several devices in every update."""
        return not self.failed and not self.missing

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.status == FAILED]

    @property
    def missing(self) -> list[Check]:
        """What could not be compared, so that nothing is proven of it."""
        return [check for check in self.checks if check.status == NOT_COMPARED]

    @property
    def verdict(self) -> str:
        """`failed`, `incomplete` where something was not compared, or `passed`."""
        return "failed" if self.failed else "incomplete" if self.missing else "passed"

    @property
    def causes(self) -> list[str]:
        """The names of the causes found, each once, without those that follow from another."""
        return list(dict.fromkeys(check.cause for check in self.failed if check.cause not in ("", "follows")))

    def require(self, not_compared: Collection[str] = (), checked: Collection[str] = ()) -> None:
        """Raise a `VerificationError`, whose message is the report, where a check failed or something was not compared.

        Args:
            not_compared: leaves that need not be compared, because rounding hides them: each by its whole name.
            checked: names of checks that must have been made, for example `the work is split`.
        """
        blind = set(self.compared.blind or {}) <= set(not_compared)
        missing = [check for check in self.missing if not (blind and check.name == "every leaf")]
        made = {check.name for check in self.checks if check.status in (PASSED, FAILED)}
        if unmade := [name for name in checked if name not in made]:
            raise VerificationError(f"not checked: {', '.join(unmade)}\n{self}")
        if self.failed or missing:
            raise VerificationError(f"\n{self}")

    def __str__(self) -> str:
        checked = sum(check.status in (PASSED, FAILED) for check in self.checks)
        lacking = ", ".join(check.name for check in self.missing)
        last = {
            "failed": f"{len(self.failed)} of {checked} checks FAILED",
            "incomplete": f"NOT PROVEN: {checked} checks passed, but not compared: {lacking}",
            "passed": f"All {checked} checks passed",
        }[self.verdict]
        last += f", computed in {self.precision}, in {self.seconds:.0f} s."
        last += " One mistake can hide others: correct it and verify again." * bool(self.failed)
        return "\n".join([*map(str, self.checks), str(self.compared), last])

    def to_json(self) -> str:
        """The report as JSON: the verdict, what was compared, not compared and not checked, and every check."""
        found: dict[str, Any] = {
            "ok": self.ok,
            "verdict": self.verdict,
            "causes": self.causes,
            "precision": self.precision,
            "seconds": self.seconds,
            "compared": self.compared._asdict(),
            "not_compared": {check.name: check.sentence for check in self.missing},
            "not_checked": {check.name: check.sentence for check in self.checks if check.status == NOT_CHECKED},
            "checks": [check._asdict() for check in self.checks],
        }
        return json.dumps(found, indent=2, default=str)
