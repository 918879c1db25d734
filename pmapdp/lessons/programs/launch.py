"""Start Python in processes of its own: lesson 14 kills one, lesson 17 connects two, and
lesson 19 does both.
"""

import inspect
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS_ALLOWED = 300  # for processes that connect, on a machine that others use, too
IMPORTS = """
import os, textwrap
import jax, numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
"""
CONNECT = """
processes, process_id = int(os.environ["PROCESSES"]), int(os.environ["PROCESS_ID"])
jax.distributed.initialize(os.environ["COORDINATOR"], processes, process_id)
"""
CALL = """
try:
    {name}()
except RuntimeError as error:
    print(textwrap.fill(f"RuntimeError: {{error}}", 90))
"""


def take_home() -> str:
    """The program of this notebook's take-home cell, as it was last run."""
    from IPython.core.getipython import get_ipython

    cells = get_ipython().user_ns["In"]
    return next(text for text in reversed(cells) if text.startswith('"""Train a small'))


class RecordedStream:
    """A stream that also keeps what is written, in the list `texts`."""

    def __init__(self, stream: Any, texts: list[str]):
        self.stream = stream
        self.texts = texts

    def write(self, text: str) -> Any:
        """Write and keep a text."""
        self.texts.append(text)
        return self.stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def record_output() -> list[str]:
    """Return a list that gets each text that later cells of this notebook print."""
    texts: list[str] = []
    # Replaced as a whole, because IPython restores its `write` after every cell.
    sys.stdout = RecordedStream(sys.stdout, texts)
    return texts


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def start(
    count: int, *arguments: str, devices: int = 8, **variables: str
) -> list[subprocess.Popen[str]]:
    """Start `count` Pythons, each with `devices / count` simulated devices.

    They find COORDINATOR, PROCESSES and PROCESS_ID in their environment. {address} and
    {number} in the arguments are filled in.
    """
    address, processes = f"127.0.0.1:{free_port()}", []
    for number in range(count):
        settings = {
            "COORDINATOR": address,
            "PROCESSES": str(count),
            "PROCESS_ID": str(number),
            "JAX_PLATFORMS": "cpu",
        }
        settings |= {
            "JAX_NUM_CPU_DEVICES": str(devices // count),
            "NPROC": "16",
            "PYTHONUNBUFFERED": "1",
        }
        settings |= {
            "PYTHONWARNINGS": "ignore:Error"
        }  # about the other's entry in a cache of compiled programs
        filled = [
            each.replace("{address}", address).replace("{number}", str(number))
            for each in arguments
        ]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        processes.append(
            subprocess.Popen(
                [sys.executable, *filled],
                env={**os.environ, **settings, **variables},
                **streams,
            )
        )
    return processes


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a path exists, or until the process that should make it has ended."""
    while not path.exists() and process.poll() is None:
        time.sleep(0.01)


def reason_for_abort(log: str) -> str:
    """The words of a log that say why JAX ended its process, without what XLA prints around them."""
    found = re.search(r"stopped sending heartbeats|gloo::\w+", log)
    return found[0] if found else "no reason that this lesson knows"


def outputs(processes: list[subprocess.Popen[str]]) -> list[list[str]]:
    """The lines that each process has printed, when all have ended. If one failed, the error shows what all have said."""
    texts = [each.communicate(timeout=SECONDS_ALLOWED)[0] for each in processes]
    codes = [each.returncode for each in processes]
    assert not any(codes), f"exit statuses {codes}\n" + "\n".join(texts)
    noise = (
        "",
        "[G",
        "I0",
        "I1",
        "W0",
        "W1",
        "E0",
        "E1",
    )  # how gloo's own lines and XLA's (a letter, the month) begin
    lines_of = []
    for text in texts:
        lines = [line for line in text.splitlines() if line[:2] not in noise]
        # Several threads of gloo write at once, so their lines may lack their beginnings.
        lines_of.append([line for line in lines if "peer ranks" not in line])
    return lines_of


def run(function: Callable[[], Any], count: int = 2) -> None:
    """Run a function of this notebook in `count` connected processes, and show what each of them prints.

    It sees the names that `IMPORTS` imports, and nothing else of the notebook. A
    RuntimeError of JAX is printed, too.
    """
    source = inspect.getsource(function)
    code = "\n".join([IMPORTS, CONNECT, source, CALL.format(name=function.__name__)])
    for number, lines in enumerate(outputs(start(count, "-c", code))):
        print(f"process {number}:", *lines, sep="\n  ")
