"""Processes that a test may kill.

Children of a server that has imported everything once.

with forks.start("train", ["--workdir", folder], output) as process:
    os.kill(process.pid, signal.SIGKILL)
"""

import contextlib
import gc
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import entry

CONTEXT = multiprocessing.get_context("forkserver")
IMPORTED = ["entry", "pmapdp.train", "orbax.checkpoint"]
CONTEXT.set_forkserver_preload(IMPORTED)
ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def start(
    name: str, arguments: list[object], output: Path
) -> Iterator[multiprocessing.Process]:
    """A running command of ours, whose output goes to a file.

    It has ended when the block is left.
    """
    process = CONTEXT.Process(
        target=entry.run_in_child,
        args=(name, [str(argument) for argument in arguments], str(output)),
    )
    process.start()
    try:
        yield process
        process.join(600)  # also on a machine that is busy
        assert process.exitcode is not None, "it hangs"
    finally:
        process.kill()
        process.join()


def popen(function: Callable[..., None], *arguments: object) -> SimpleNamespace:
    """A child that calls a function, with the names of `subprocess.Popen`."""
    process = CONTEXT.Process(target=function, args=arguments)
    process.start()

    def wait(timeout: float | None = None) -> int | None:
        process.join(timeout)
        return process.exitcode

    return SimpleNamespace(
        pid=process.pid,
        poll=lambda: process.exitcode,
        wait=wait,
        kill=process.kill,
        send_signal=lambda number: os.kill(process.pid, number),
        **dict.fromkeys(("stdin", "stdout", "stderr")),
    )


def run_kernel(command: list[str], folder: str, variables: Mapping[str, str]) -> None:
    """Be the kernel of a notebook, as if this process had begun with the command in the
    folder.
    """
    os.setsid()  # whoever stops a kernel sends the signal to its group
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    theirs = variables["PYTHONPATH"].split(os.pathsep)
    sys.path[:] = [
        *theirs,
        *(path for path in sys.path if not Path(path).is_relative_to(ROOT)),
    ]
    gc.set_threshold(50_000, 20, 20)  # as tests/conftest.py has it
    from ipykernel.kernelapp import launch_new_instance

    launch_new_instance(argv=command[command.index("-f") :])


def launch_kernel(
    command: list[str], *, env: Mapping[str, str], cwd: str | None = None, **_: object
):
    """Start a notebook's kernel in a child, in place of Jupyter's function of this
    name: that spares 4 s of imports.
    """
    CONTEXT.set_forkserver_preload(
        [*IMPORTED, "ipykernel.kernelapp", "matplotlib.pyplot"]
    )  # if it doesn't run yet
    kernel = popen(run_kernel, command, str(cwd or Path.cwd()), dict(env))
    while (
        os.getpgid(kernel.pid) != kernel.pid
    ):  # else Jupyter would take pytest's group for the kernel's
        time.sleep(0.01)
    return kernel
