"""Commands in processes that a test may kill: children of a server that has imported everything once.

with forks.start("train", ["--workdir", folder], output) as process:
    os.kill(process.pid, signal.SIGKILL)
"""

import contextlib
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import entry

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["entry", "pmapdp.train", "orbax.checkpoint"])


@contextlib.contextmanager
def start(name: str, arguments: list[object], output: Path) -> Iterator[multiprocessing.Process]:
    """A running command of ours, whose output goes to a file; it has ended when the block is left."""
    process = CONTEXT.Process(target=entry.run_in_child, args=(name, [str(each) for each in arguments], str(output)))
    process.start()
    try:
        yield process
        process.join(600)  # also on a machine that is busy
        assert process.exitcode is not None, "it hangs"
    finally:
        process.kill()
        process.join()
