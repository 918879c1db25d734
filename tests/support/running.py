"""Commands that run beside the test, to be killed or watched; `launch.py` has those that it waits for."""

import subprocess
import sys
from collections.abc import Mapping

from launch import environment


def start(
    *arguments: object, module: str = "pmapdp.train", env: Mapping[str, str] | None = None, **options
) -> subprocess.Popen:
    """A running `python -m MODULE ARGUMENTS`; its stdout and stderr are pipes of text. `env` are changes."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(env),
        **options,
    )


def run(*arguments: object, module: str = "pmapdp.train", status: int = 0, **options) -> tuple[str, str]:
    """stdout and stderr of a command, which must end with `status`."""
    process = start(*arguments, module=module, **options)
    out, err = process.communicate(timeout=300)
    assert process.returncode == status, f"exit status {process.returncode}\n{out}\n{err}"
    return out, err
