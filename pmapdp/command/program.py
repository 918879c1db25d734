"""How every command starts: `python -m pmapdp.train`, or `pmapdp train` with the console script.

`run` comes before the imports of a command, which take a second: a signal or an error in that time ends it with one
line too.
"""

import os
import sys

from pmapdp.command.shadows import shadow

try:
    import importlib
    import signal
    import threading
    from typing import Any, NoReturn

    from pmapdp.command.ending import TRACEBACK, run_command
    from pmapdp.command.environment import check_environment
    from pmapdp.command.signals import SIGNALS, end_at_once
    from pmapdp.errors import UserError, unknown
except Exception as error:
    if sentence := shadow(error):
        print(f"error: {sentence}", file=sys.stderr, flush=True)
        os._exit(2)
    raise

COMMANDS = ("train", "evaluate", "export", "predict", "compare", "verify", "port", "scaling", "environment")


def run(module: str) -> NoReturn:
    """Import `module`, call its `main` with the arguments of the command line, and end the process with its status."""

    def start(arguments: list[str]) -> None:
        end_at_once()
        if not os.environ.get(TRACEBACK):  # threads, and C++ that calls Python, say nothing of their own
            silent: Any = lambda *_: None  # noqa: E731
            sys.excepthook = sys.unraisablehook = threading.excepthook = silent
            if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "1") == "1":  # as JAX sets it, for processes that it starts too
                os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # C++ says errors alone, no warnings
        if refusal := check_environment():
            raise UserError(refusal)
        importlib.import_module(module).main(arguments)

    status = run_command(start)
    # Without the work of an interpreter that ends: it takes a while, in which signals would have their own effect.
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os._exit(status)


def main() -> NoReturn:
    """The console script `pmapdp`: its first argument is the command."""
    name = sys.argv.pop(1) if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        run("pmapdp.train" if name == "train" else f"pmapdp.{name}.__main__")

    def describe(_: list[str]) -> None:
        if name not in ("--help", "-h"):
            raise unknown("command", name, COMMANDS)
        print(f"usage: pmapdp {{{','.join(COMMANDS)}}} ...\n\npmapdp COMMAND --help describes a command.")

    sys.exit(run_command(describe))
