"""A function in a process of its own, so that what it measures has the machine, and JAX, to itself.

A process cannot change its number of devices, and the threads of eight simulated devices slow every later run in the
same process down. The caller itself does not start JAX, which may take all the memory of an accelerator.
"""

import importlib
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
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
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "call")
        path.write_bytes(pickle.dumps((function.__module__, function.__qualname__, arguments)))
        command = [sys.executable, "-m", "pmapdp.compare.apart", str(path)]
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
        # What code of the user's prints goes to standard error: standard output has the table alone.
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), env=variables)
        if done.returncode:
            raise UserError(
                f"the process that was to run {function.__name__} ended with status {done.returncode}: see its message "
                "above, or free some memory"
            )
        result, error = pickle.loads(path.read_bytes())
    if error is not None:
        raise error
    return result


def main(path: Path) -> None:
    """Read a call from a file, make it, and write its result, or the error that is the user's, to the same file."""
    module, name, arguments = pickle.loads(path.read_bytes())
    result = error = None
    try:
        result = getattr(importlib.import_module(module), name)(*arguments)
    except UserError as raised:
        error = raised.with_traceback(None)
        error.__cause__ = error.__context__ = None  # which may not be pickled
    path.write_bytes(pickle.dumps((result, error)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
