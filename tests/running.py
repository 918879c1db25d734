"""Starts the project's commands as a user would, each in a process of its own."""

import os
import subprocess
import sys


def start(*arguments: object, module: str = "pmapdp.train", **options) -> subprocess.Popen:
    """A running `python -m MODULE ARGUMENTS`; its stdout and stderr are pipes of text."""
    environment = {name: value for name, value in os.environ.items() if name not in ("NPROC", "XLA_FLAGS")}
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def run(*arguments: object, module: str = "pmapdp.train", status: int = 0, **options) -> tuple[str, str]:
    """stdout and stderr of a command, which must end with `status`."""
    process = start(*arguments, module=module, **options)
    out, err = process.communicate(timeout=300)
    assert process.returncode == status, f"exit status {process.returncode}\n{out}\n{err}"
    return out, err
