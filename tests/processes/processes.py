"""Several processes of one run on the loopback interface; none is left behind."""

import contextlib
import re
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import entry
import forks
from launch import environment

HEARTBEAT = 10  # seconds; short, so that the tests of faults are


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def by_hand() -> list[list[str]]:
    """The flags of two processes that say who the other is."""
    flags = f"--coordinator 127.0.0.1:{free_port()} --num-processes 2 "
    flags += f"--heartbeat-timeout {HEARTBEAT} --process-id"
    return [[*flags.split(), process] for process in "01"]


@contextlib.contextmanager
def running(
    *commands: list[object],
    env: list[Mapping[str, str]] | None = None,
    program: Path | str = "train",
) -> Iterator[list[SimpleNamespace]]:
    """Our command, or a script, with the arguments of each command.

    Killed at the end if they still run.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        processes = []
        for number, command in enumerate(commands):
            files = [f"{folder}/{number}.{name}" for name in ("out", "err")]
            variables = environment(env[number] if env else None)
            process = forks.popen(
                entry.run_in_child,
                str(program),
                [str(argument) for argument in command],
                *files,
                variables,
            )
            process.files = files
            stack.callback(process.wait)
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def end_of(process: SimpleNamespace) -> entry.Done:
    """Wait for a process to end.

    Its messages come without gloo's lines and C++'s warnings.
    """
    assert process.wait(240) is not None, "it hangs"
    out, err = (Path(file).read_text() for file in process.files)
    ours = (
        line for line in err.splitlines() if not re.match(r"\[Gloo\]|W\d{4} ", line)
    )
    return entry.Done(process.poll(), out, "\n".join(ours))


def train_together(
    *job: object, hands: list[list[str]] | None = None, status: int = 0, **options
) -> list[entry.Done]:
    """Run a job with two processes, or with `hands`, and require that all end with
    `status`.
    """
    with running(
        *([*job, *hand] for hand in hands or by_hand()), **options
    ) as processes:
        ended = [end_of(process) for process in processes]
    assert [process.status for process in ended] == [status] * len(ended), ended
    return ended


def wait_for_checkpoint(
    workdir: Path, processes: list[SimpleNamespace], before: Sequence[int] = ()
) -> None:
    """Wait until a run has other checkpoints than `before`, which shows that training
    is under way.
    """
    deadline = time.monotonic() + 240
    while entry.checkpoint_steps(workdir) == list(before):
        assert all(process.poll() is None for process in processes), [
            end_of(process) for process in processes
        ]
        assert time.monotonic() < deadline
        time.sleep(0.02)
