"""This process among those of a run."""

import contextlib
import json
import os
import re
import threading
from collections.abc import Iterator
from typing import Any, NoReturn

import jax
import numpy as np
from jax.errors import JaxRuntimeError
from jax.experimental import multihost_utils

from pmapdp.cli import report
from pmapdp.errors import DivergedError, ReplicasError, StoppedError, UserError, reason

TOGETHER = DivergedError, ReplicasError, StoppedError  # raised by all processes, after the same update
FAREWELL = 5  # seconds in which the other processes may say the same error, before process 0 takes them all down
# How the errors of a collective and of JAX's coordination service begin, or what they name.
CONNECTION = re.compile("gloo|nccl|coordination|unavailable|deadline_exceeded|barrier", re.IGNORECASE)


class LostError(UserError):
    """This process ends because of another one; commands exit with status 4."""

    status = 4


class Peers:
    """One of several processes that `jax.distributed` has connected, or a process alone. All make the same calls, in
    the same order.

    Attributes:
        process: number of this process, from 0.
        count: number of processes.
        started: who started them, for the header.
    """

    def __init__(self, process: int = 0, count: int = 1, started: str = "by hand"):
        self.process, self.count, self.started = process, count, started

    @property
    def first(self) -> bool:
        """Whether this process writes logs and metrics: process 0 does."""
        return self.process == 0

    def exchange(self, value: Any) -> list[Any]:
        """What every process says, JSON, in the order of their numbers."""
        if self.count == 1:
            return [value]
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        lengths = multihost_utils.process_allgather(np.int32(len(text)))
        texts = multihost_utils.process_allgather(np.pad(text, (0, lengths.max() - len(text))))
        return [json.loads(bytes(row[:length])) for row, length in zip(texts, lengths, strict=True)]

    def require_same(self, facts: dict[str, Any]) -> None:
        """Refuse, on all processes, to go on with one for which a fact differs. Every process gives the same names."""
        first, *others = self.exchange(facts)
        for process, other in enumerate(others, start=1):
            for fact, value in first.items():
                if other.get(fact) != value:
                    raise UserError(
                        f"process {process} differs from process 0 in {fact} ({other.get(fact)!r} there, {value!r} "
                        "here): start all processes with the same command and the same files"
                    )

    def require_all(self, kind: type[Exception], error: Exception | None) -> None:
        """Raise `error`, or where another process has one of this kind, that; so all go on or none."""
        for process, text in enumerate(self.exchange(None if error is None else str(error))):
            if text is not None:
                raise error or kind(f"process {process}: {text}")

    def wait(self, name: str) -> None:
        """Wait until all processes are here."""
        if self.count > 1:
            multihost_utils.sync_global_devices(name)

    def failing_together(self) -> contextlib.AbstractContextManager[None]:
        """`failing_together`, where there are others."""
        return failing_together() if self.count > 1 else contextlib.nullcontext()


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
    """End the process at once where an error is its own: its cleaning up would wait for the others, which wait for it
    in their next collective. They see its connections close, and end as well."""
    try:
        yield
    except TOGETHER:
        raise
    except BaseException as error:
        end(error)


def end(error: BaseException) -> NoReturn:
    """Report an error of this process, or that another one is lost, and end this one."""
    if lost := lost_connection(error):
        os._exit(report(lost))
    status = report(error)
    farewell = threading.Thread(target=jax.distributed.shutdown, daemon=True)  # waits for the others
    farewell.start()
    farewell.join(FAREWELL)
    os._exit(status)


def lost_connection(error: BaseException) -> LostError | None:
    """What to say where JAX raised this error because of another process; None where it did not."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, JaxRuntimeError) and CONNECTION.search(str(cause)):
            return LostError(
                f"another process is lost, see its own messages ({reason(cause)}): start the same command again, and a "
                "run with a workdir resumes from its last checkpoint"
            )
        cause = cause.__cause__ or cause.__context__
    return None


ALONE = Peers()
