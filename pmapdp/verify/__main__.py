"""`python -m pmapdp.verify FILE.py:FUNCTION`: verify a step in a file of your own.

    python -m pmapdp.verify examples/sum_of_means.py:check
    python -m pmapdp.verify examples/sum_of_means.py:check --devices 4 --json report.json

Exit status 0 where every check passed and all was compared, 1 where one failed, something was not compared or the
program raised an error, 2 where the command is wrong.
"""

if __name__ == "__main__":  # before the imports, which take a second: a signal or an error in it ends in one line too
    from pmapdp.command.program import run

    run("pmapdp.verify.__main__")

import dataclasses
from dataclasses import dataclass

from pmapdp.command.flags import parse_options
from pmapdp.config import setting
from pmapdp.devices import choose
from pmapdp.errors import FailedError
from pmapdp.files.outputs import JSON, Output, check_outputs
from pmapdp.files.writing import write_file
from pmapdp.verify.program_file import full_path, verify_program


@dataclass(frozen=True)
class Options:
    """Compare a training step on several devices with its reference on one."""

    target: str = setting(
        "arguments",
        dataclasses.MISSING,
        "A function without arguments that returns those of pmapdp.verify.verify in a dictionary.",
        place="FILE.py:FUNCTION",
    )
    devices: int | None = setting(
        "options", None, "Number of devices; default: all accelerators, or 8 simulated CPU devices where there is none."
    )
    json: str | None = setting("options", None, "Write the report to this file, too.")


def main(arguments: list[str]) -> None:
    """The command."""
    options = parse_options(
        Options, arguments, program="python -m pmapdp.verify", example="my_step.py:verification --devices 8"
    )
    # Before the file is run, which may change the current folder.
    (report_file,) = check_outputs(Output("--json", options.json, JSON), inputs=[options.target.rpartition(":")[0]])
    target = full_path(options.target)
    devices = choose(options.devices)  # before the file, which may use JAX when it is run
    _, report = verify_program(target, options.target, devices)
    print(report)
    if report_file:
        write_file(report_file, report.to_json() + "\n")
    if report.failed:
        raise FailedError(f"{options.target} is not what its reference is: {report.failed[0].name} failed")
    if report.missing:
        raise FailedError(f"{options.target} is not proven: {report.missing[0].name} not compared")
