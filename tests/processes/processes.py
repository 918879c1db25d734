"""Several processes of one run on the loopback interface; none is left behind."""

import contextlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import entry
from launch import environment

HEARTBEAT = 10  # seconds; short, so that the tests of faults are


class Ended(NamedTuple):
    """The end of a process. Its messages come without gloo's lines and C++'s warnings."""

    status: int
    out: str
    err: str


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def by_hand(count: int = 2, coordinator: str | None = None) -> list[list[str]]:
    """The flags of each process that say who the others are."""
    coordinator = coordinator or f"127.0.0.1:{free_port()}"
    flags = f"--coordinator {coordinator} --num-processes {count} --heartbeat-timeout {HEARTBEAT}".split()
    return [[*flags, "--process-id", str(process)] for process in range(count)]


@contextlib.contextmanager
def running(
    *commands: list[object],
    env: list[Mapping[str, str]] | None = None,
    program: tuple[object, ...] = ("-m", "pmapdp.train"),
) -> Iterator[list[subprocess.Popen]]:
    """`python -m pmapdp.train` with the arguments of each command; killed at the end if they still run."""
    processes = [
        subprocess.Popen(
            [sys.executable, *map(str, [*program, *command])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(env[number] if env else None),
        )
        for number, command in enumerate(commands)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            with contextlib.suppress(ValueError):  # its output was read already
                process.communicate(timeout=60)


def end_of(process: subprocess.Popen, timeout: float = 240) -> Ended:
    """Wait for a process to end."""
    out, err = process.communicate(timeout=timeout)
    ours = (line for line in err.splitlines() if not re.match(r"\[Gloo\]|W\d{4} ", line))
    return Ended(process.returncode, out, "\n".join(ours))


def train_together(*job: object, hands: list[list[str]] | None = None, status: int = 0, **options) -> list[Ended]:
    """Run a job with two processes, or with `hands`, and require that all end with `status`."""
    with running(*([*job, *hand] for hand in hands or by_hand()), **options) as processes:
        ended = [end_of(process) for process in processes]
    assert [each.status for each in ended] == [status] * len(ended), ended
    return ended


def wait_for_checkpoint(workdir: Path, processes: list[subprocess.Popen], before: Sequence[int] = ()) -> None:
    """Wait until a run has other checkpoints than `before`, which shows that training is under way."""
    deadline = time.monotonic() + 240
    while entry.checkpoint_steps(workdir) == list(before):
        assert all(process.poll() is None for process in processes), [end_of(process) for process in processes]
        assert time.monotonic() < deadline
        time.sleep(0.02)
