"""The report: every check with what it found, to print, to require in a test, or as JSON."""

import json
from typing import NamedTuple

PASSED, FAILED, NOT_CHECKED = "passed", "FAILED", "not checked"


class VerificationError(AssertionError):
    """The step does not do what its reference does; the message is the report."""


class Check(NamedTuple):
    """One check.

    Attributes:
        name: what was checked.
        status: `passed`, `FAILED` or `not checked`.
        devices: the numbers of devices for which this holds.
        sentence: what is wrong, its usual cause and its cure; or why it could not be checked.
        cause: name of the cause in `pmapdp.verify.sentences.CAUSES`; empty where there is none.
        leaves: how far each wrong leaf is from the reference, and the difference that rounding allows.
        update: number of the first wrong update, from 1; 0 where it does not apply.
    """

    name: str
    status: str
    devices: tuple[int, ...] = ()
    sentence: str = ""
    cause: str = ""
    leaves: dict[str, tuple[float, float]] | None = None
    update: int = 0

    def __str__(self) -> str:
        counts = ", ".join(map(str, self.devices))
        on = f" ({counts} device{'s' * (counts != '1')})" if counts else ""
        text = f"{self.status:<12} {self.name}{on}" + (f": {self.sentence}" if self.sentence else "")
        if self.leaves:
            worst = max(self.leaves, key=lambda name: self.leaves[name][0])  # type: ignore[index]
            difference, tolerance = self.leaves[worst]
            text += (
                f"\n{'':13}Largest difference: {difference:.2g} in {worst} after update {self.update}; "
                f"rounding allows {tolerance:.1g}. Wrong leaves: {len(self.leaves)}."
            )
        return text


class Report(NamedTuple):
    """What `verify` found.

    Attributes:
        checks: in the order of printing.
        precision: the type in which it was computed, and why not float64 where that is so.
        seconds: how long it took.
    """

    checks: list[Check]
    precision: str
    seconds: float

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
        """Do nothing where no check failed.

        Raises:
            VerificationError: a check failed; the message is the report.
        """
        if not self.ok:
            raise VerificationError(f"\n{self}")

    def __str__(self) -> str:
        checked = sum(check.status != NOT_CHECKED for check in self.checks)
        last = (
            f"{len(self.failed)} of {checked} checks FAILED" if self.failed else f"All {checked} checks passed"
        ) + f", computed in {self.precision}, in {self.seconds:.0f} s."
        return "\n".join([*map(str, self.checks), last])

    def to_json(self) -> str:
        """The report as JSON: `ok`, `precision`, `seconds`, and the fields of each check."""
        checks = [check._asdict() for check in self.checks]
        fields = {"ok": self.ok, "precision": self.precision, "seconds": self.seconds, "checks": checks}
        return json.dumps(fields, indent=2, default=str)
