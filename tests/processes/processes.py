"""Several processes of one run, started by hand on the loopback interface; none is left behind."""

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from launch import environment

HEARTBEAT = 10  # seconds; short, so that the tests of faults are


class Ended(NamedTuple):
    """How a process ended. Its messages come without the lines that gloo prints."""

    status: int
    out: str
    err: str


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def by_hand(count: int) -> list[list[object]]:
    """The flags of each process that say who the others are."""
    coordinator = f"127.0.0.1:{free_port()}"
    return [
        [
            "--coordinator",
            coordinator,
            "--num-processes",
            count,
            "--process-id",
            process,
            "--heartbeat-timeout",
            HEARTBEAT,
        ]
        for process in range(count)
    ]


@contextlib.contextmanager
def running(
    *commands: list[object], env: dict[str, str] | None = None, program: tuple[object, ...] = ("-m", "pmapdp.train")
) -> Iterator[list[subprocess.Popen]]:
    """`python -m pmapdp.train` with the arguments of each command; killed at the end where they still run."""
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, [*program, *command])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(env),
            cwd=Path(__file__).parent,
        )
        for command in commands
    ]
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            with contextlib.suppress(ValueError):  # its output was read already
                process.communicate(timeout=60)


def end_of(process: subprocess.Popen, timeout: float = 120) -> Ended:
    """Wait for a process to end."""
    out, err = process.communicate(timeout=timeout)
    return Ended(process.returncode, out, "\n".join(line for line in err.splitlines() if not line.startswith("[Gloo]")))


def train_together(count: int, *job: object, status: int = 0) -> list[Ended]:
    """Run a job with `count` processes, which must all end with `status`."""
    with running(*([*job, *own] for own in by_hand(count))) as processes:
        ended = [end_of(process) for process in processes]
    assert [each.status for each in ended] == [status] * count, ended
    return ended


def wait_for_checkpoint(workdir: Path, processes: list[subprocess.Popen], steps: int = 1, timeout: float = 120) -> None:
    """Wait until a run has a checkpoint of update `steps` or later, which shows that training is under way."""
    deadline = time.monotonic() + timeout
    while not any(int(path.name) >= steps for path in (workdir / "checkpoints").glob("[0-9]*") if path.name.isdigit()):
        assert all(process.poll() is None for process in processes), [end_of(process) for process in processes]
        assert time.monotonic() < deadline
        time.sleep(0.02)
