"""Compare a training step of your own on several devices with its reference on one.

    python -m pmapdp.verify examples/sum_of_means.py:check
    python -m pmapdp.verify examples/sum_of_means.py:check --devices 4
    python -m pmapdp.verify examples/sum_of_means.py:check --json report.json

FUNCTION takes no arguments. It returns a dictionary with the arguments of
`pmapdp.verify.verify` by name: `step`, `reference` and `state`, and if your step needs
them, `batch`, `key`, `layout`, `per_device`, `batch_axis`, `last_batch`, `devices`,
`updates` and `float64`. `help(pmapdp.verify.verify)` explains them.

The exit status is 0 if everything was compared and is equal, 1 if not or if the program
fails, and 2 if the command is wrong.
"""

import dataclasses
import sys
from dataclasses import dataclass

from pmapdp import cli, flags
from pmapdp.config import setting
from pmapdp.devices import choose_devices
from pmapdp.errors import FailedError
from pmapdp.files import REPORT_SIGNATURES, check_output, write_file
from pmapdp.verify.verification import verify_program

COMMAND = flags.Command(
    usage="python -m pmapdp.verify FILE.py:FUNCTION [flags]",
    example="python -m pmapdp.verify examples/sum_of_means.py:check",
    description=__doc__,
)


@dataclass(frozen=True)
class Options:
    """Compare a training step on several devices with its reference on one."""

    target: str = setting(
        "arguments",
        dataclasses.MISSING,
        "Function that returns verify's arguments in a dictionary.",
        positional="FILE.py:FUNCTION",
    )
    devices: int | None = setting(
        "options",
        None,
        "How many devices to run your step on. Default: all accelerators, or 8 "
        "simulated CPU devices.",
    )
    json: str | None = setting(
        "options", None, "Also write the report to this file.", metavar="FILE"
    )


def main(arguments: list[str]) -> None:
    """Run the command."""
    options = flags.parse(COMMAND, Options, arguments)
    # Before the file is run, which may change the current folder and use JAX.
    report_file = check_output("--json", options.json, REPORT_SIGNATURES)
    _, report = verify_program(options.target, choose_devices(options.devices))
    print(report)
    if report_file:
        write_file(report_file, report.to_json() + "\n")
    checks = report.failed or report.missing
    if checks:
        raise FailedError(
            f"{options.target} is not proven equal to its reference: {checks[0].name} "
            f"{checks[0].status}"
        )


if __name__ == "__main__":
    sys.exit(cli.run(main))
