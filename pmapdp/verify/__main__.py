"""`python -m pmapdp.verify FILE.py:FUNCTION`: verify a step in a file of your own.

    python -m pmapdp.verify examples/mnist.py:verification
    python -m pmapdp.verify examples/mnist.py:verification --devices 4 --json report.json

FUNCTION takes no arguments and returns a dictionary with the arguments of `pmapdp.verify.verify`. Exit status 0 where
every check passed, 1 where one failed, 2 where the command is wrong.
"""

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any, NoReturn

from pmapdp.devices import choose
from pmapdp.errors import UserError, run_command
from pmapdp.verify import Report, verify
from pmapdp.verify.runs import blame

EXAMPLE = "python -m pmapdp.verify my_step.py:verification"


class Parser(argparse.ArgumentParser):
    """Mistakes in one sentence."""

    def error(self, message: str) -> NoReturn:
        """Raise it with a command that works."""
        raise UserError(f"{message}: try {EXAMPLE}")


class FailedError(UserError):
    """The user's program is wrong; exit status 1."""

    status = 1


def main(arguments: list[str]) -> None:
    """The command."""
    parser = Parser(
        prog="python -m pmapdp.verify", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", metavar="FILE.py:FUNCTION", help="a function that returns the arguments of verify")
    parser.add_argument("--devices", type=int, metavar="N", help="use N devices (all, or 8 simulated ones)")
    parser.add_argument("--json", metavar="FILE", help="write the report there as JSON, too")
    options = parser.parse_args(arguments)
    devices = choose(options.devices)  # before the file, which may use JAX when it is imported
    report = verify_file(options.target, devices)
    print(report)
    if options.json:
        Path(options.json).write_text(report.to_json() + "\n")
    if not report.ok:
        raise FailedError(f"{options.target} is not what its reference is: {report.failed[0].name} failed")


def verify_file(target: str, devices: list[Any]) -> Report:
    """The report on a function of a file, given as `FILE.py:FUNCTION`."""
    path, _, name = target.rpartition(":")
    if not path or not name.isidentifier():
        raise UserError(f"{target} names no function of a file: try {EXAMPLE}")
    if not Path(path).is_file():
        raise UserError(f"{path} is not a file: try {EXAMPLE}")
    specification = importlib.util.spec_from_file_location(Path(path).stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.path.insert(0, str(Path(path).resolve().parent))  # as `python FILE.py` does
    sys.modules[specification.name] = module
    try:
        specification.loader.exec_module(module)
        function = getattr(module, name, None)
        if not callable(function):
            raise UserError(f"{path} has no function {name}: define one that returns the arguments of verify")
        return verify(**{"devices": devices, **function()})
    except UserError:
        raise
    except Exception as error:
        raise FailedError(blame(error)) from error


if __name__ == "__main__":
    sys.exit(run_command(main))
