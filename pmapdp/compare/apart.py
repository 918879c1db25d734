"""A function in a process of its own, so that what it measures has the machine, and JAX, to itself.

A process cannot change its number of devices, and the threads of eight simulated devices slow every later run in the
same process down. The caller itself does not start JAX, which may take all the memory of an accelerator.
"""

import importlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pmapdp.errors import UserError


def apart(function: Callable[..., Any], *arguments: Any, **environment: str) -> Any:
    """What a function of a module of ours returns for `arguments`, computed in a new process.

    Args:
        function: found by its module and name; arguments and result are pickled.
        environment: variables of the new process beside those of this one.

    Raises:
        UserError: the one that the function raised, or the process died.
    """
    call = pickle.dumps((function.__module__, function.__qualname__, arguments))
    command = [sys.executable, "-m", "pmapdp.compare.apart"]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    # By pipes, which leave nothing behind when a signal ends this process.
    done = subprocess.run(command, input=call, stdout=subprocess.PIPE, env=variables)
    if done.returncode:
        raise UserError(
            f"the process that was to run {function.__name__} ended with status {done.returncode}: see its message "
            "above, or free some memory"
        )
    result, error = pickle.loads(done.stdout)
    if error is not None:
        raise error
    return result


def main() -> None:
    """Read a call from standard input, make it, and write its result, or the error that is the user's, to standard
    output. What the user's code prints goes to standard error."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller, which has it too, ends this process
    module, name, arguments = pickle.load(sys.stdin.buffer)
    with suppress(BrokenPipeError), os.fdopen(os.dup(sys.stdout.fileno()), "wb") as output:  # the caller has ended
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        result = error = None
        try:
            result = getattr(importlib.import_module(module), name)(*arguments)
        except UserError as raised:
            error = raised.with_traceback(None)
            error.__cause__ = error.__context__ = None  # which may not be pickled
        pickle.dump((result, error), output)


if __name__ == "__main__":
    main()
