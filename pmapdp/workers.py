"""Work in a process of its own: start it, wait, and say in one sentence what went wrong.

A process cannot change its number of simulated devices, so whatever needs several numbers starts workers: the runs of
`pmapdp.compare`, and the benchmarks.
"""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping

from pmapdp.errors import UserError


class WorkerError(UserError):
    """A worker ended without a result; `status` is its exit status, or 1 where a signal ended it."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = max(1, status)


def run_worker(*module: object, changes: Mapping[str, str] | None = None, seconds: float | None = None) -> bytes:
    """Run `python -m MODULE ARGUMENTS` to its end, with `changes` to the environment; what it wrote to stdout.

    A `WorkerError` says that it failed, or took more than so many seconds. Nothing is written to its stdin, which ends
    with this process.
    """
    lifeline, held = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-m", *map(str, module)],
            stdin=lifeline,
            capture_output=True,
            timeout=seconds,
            env=os.environ | dict(changes or {}),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WorkerError(f"a process took more than {seconds:g} seconds", 1) from None
    finally:
        os.close(lifeline)
        os.close(held)
    if done.returncode:
        raise WorkerError(what_happened(done.returncode, done.stderr.decode(errors="replace")), done.returncode)
    return done.stdout


def what_happened(status: int, errors: str) -> str:
    """The line of `errors` (a process' stderr) that says why it ended: the sentence of our commands, or the last."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["it said nothing"]
    own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = (own or lines)[-1]
    return line if status > 0 else f"ended by {signal.Signals(-status).name}: {line}"


def end_with_starter() -> None:
    """End this worker as soon as the process that started it has ended, for whatever reason. Called by workers."""

    def wait() -> None:
        os.read(0, 1)  # nobody writes: this returns when the other end is closed
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
