"""Work in processes of their own: start them, wait, and say in one sentence what went wrong.

A process cannot change its number of simulated devices, so whatever needs several numbers starts workers: the runs of
`pmapdp.compare`, and the benchmarks.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping

from pmapdp.errors import StoppedError, UserError

LIFELINE = "PMAPDP_LIFELINE"  # number of a pipe that ends with the process that started the worker


class WorkerError(UserError):
    """A worker ended without a result; `status` is its exit status, or 1 where a signal ended it."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = max(1, status)


def run_workers(*modules: list, changes: Mapping[str, str] | None = None, seconds: float | None = None) -> list[str]:
    """Run `python -m MODULE ARGUMENTS` for each of `modules` at the same time; what each wrote to stdout.

    A `WorkerError` says that one failed, or took more than so many seconds; then all are ended. `changes` are those to
    the environment.
    """
    lifeline, held = os.pipe()
    environment = os.environ | dict(changes or {}) | {LIFELINE: str(lifeline)}
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, held)
        stack.callback(os.close, lifeline)
        processes = []
        for module in modules:
            process = subprocess.Popen(
                [sys.executable, "-m", *map(str, module)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environment,
                pass_fds=(lifeline,),
            )
            stack.enter_context(process)
            stack.callback(process.kill)  # called before the process is waited for; does nothing to an ended one
            processes.append(process)
        return [output(process, seconds) for process in processes]


def output(process: subprocess.Popen, seconds: float | None) -> str:
    """What a process wrote to stdout until its end; errors as of `run_workers`."""
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        raise WorkerError(f"a process took more than {seconds:g} seconds", 1) from None
    if process.returncode:
        raise WorkerError(what_happened(process.returncode, errors), process.returncode)
    return out


def what_happened(status: int, errors: str) -> str:
    """The line of `errors` (a process' stderr) that says why it ended: the sentence of our commands, or the last."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["it said nothing"]
    own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = (own or lines)[-1]
    return line if status > 0 else f"ended by {signal.Signals(-status).name}: {line}"


def end_with_starter() -> None:
    """End this worker as soon as the process that started it has ended, for whatever reason. Called by workers."""
    pipe = os.environ.pop(LIFELINE, None)
    if pipe is None:
        return

    def wait() -> None:
        os.read(int(pipe), 1)  # nobody writes: this returns when the other end is closed
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP end the block with a `StoppedError`, so that workers are ended and temporary folders
    removed; another one changes nothing meanwhile. One that is ignored, as under nohup, stays so."""

    def stop(number: int, frame: object) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise StoppedError(f"stopped by {signal.Signals(number).name}", 128 + number)

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers if signal.getsignal(number) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
