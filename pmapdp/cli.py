"""Start a command, and end it with an exit status.

docs/statuses.md explains the statuses.
"""

import os
import runpy
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.metadata import version

from pmapdp import __version__
from pmapdp.errors import (
    StoppedError,
    UserError,
    YourCodeError,
    first_line,
    unknown_name,
)
from pmapdp.signals import catch_signals, stop

COMMANDS = {
    "train": "train a model; the same command again resumes it",
    "evaluate": "print the exact loss and metrics on the test set",
    "export": "write a trained model to one file",
    "predict": "print the class of one image or text",
    "compare": "one device, pmap, shard_map and jit side by side",
    "verify": "check your own training step against one device",
    "port": "list what a pmap program needs to run today",
    "scaling": "predict the efficiency on up to 4,096 devices",
}


def main() -> None:
    """Run the console script: `pmapdp train` is `python -m pmapdp.train`."""
    name = "--help"
    if len(sys.argv) > 1:
        name = sys.argv.pop(1)  # the command then finds its own arguments
    if name in COMMANDS:
        runpy.run_module(f"pmapdp.{name}", run_name="__main__", alter_sys=True)
    else:
        sys.exit(run(list_commands, [name]))


def list_commands(arguments: list[str]) -> None:
    """Print what `pmapdp --help` prints."""
    if arguments[0] not in ("--help", "-h"):
        raise unknown_name("command", arguments[0], COMMANDS)
    print("usage: pmapdp COMMAND ... (pmapdp train is python -m pmapdp.train)\n")
    for name, summary in COMMANDS.items():
        print(f"    {name:10}{summary}")
    print("\npmapdp COMMAND --help shows arguments and flags")


def run(main: Callable[[list[str]], None], arguments: list[str] | None = None) -> int:
    """Call the `main` of a command, and return the exit status.

    Without `arguments` it takes the command line's.
    """
    if arguments is None:
        arguments = sys.argv[1:]
    try:
        with catch_signals(stop):
            if "--version" in arguments:
                print(describe_installation())
            else:
                main(arguments)
            sys.stdout.flush()
        return 0
    except BaseException as error:
        return print_error(error)


def describe_installation() -> str:
    """List versions, devices and JAX's variables, for the report of a bug."""
    import jax  # it takes a second, which --help doesn't need

    packages = ("flax", "optax", "orbax-checkpoint")
    lines = [
        f"pmapdp: {__version__}",
        *(f"{package}: {version(package)}" for package in packages),
        f"cores: {os.cpu_count()}",
        f"NPROC: {os.environ.get('NPROC', 'not set')}",
        str(jax.print_environment_info(return_string=True)),
    ]
    return "\n".join(lines)


def print_error(error: BaseException) -> int:
    """Print the error that ends a command, and return the exit status.

    If you can correct the error, it prints a message, and otherwise a traceback.
    """
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        error = UserError(
            f"no memory is left ({first_line(error)}): use a smaller batch or model"
        )
    if isinstance(error, UserError):
        if isinstance(error, YourCodeError):
            traceback.print_exception(error.__cause__)
        print(f"error: {error.message}", file=sys.stderr)
        return error.status
    if isinstance(error, StoppedError):
        print(error.args[0], file=sys.stderr)
        return error.status
    # The reader of the output has gone, as `head` does. rich raises SystemExit then.
    if BrokenPipeError in (type(error), type(error.__context__)):
        # Python flushes standard output at its end, and would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    if isinstance(error, SystemExit):  # argparse's, after --help
        return int(error.code or 0)
    traceback.print_exception(error)
    return 1
