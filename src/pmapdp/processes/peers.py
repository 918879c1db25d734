"""This process among those of a run."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from jax.errors import JaxRuntimeError

from pmapdp.errors import DivergedError, ReplicasError, StoppedError, UserError
from pmapdp.processes.store import Store
from pmapdp.processes.watch import Watch

TOGETHER = DivergedError, ReplicasError, StoppedError  # raised by all processes, after the same update


class Peers:
    """One of several processes that are connected by what they share, `store`, and by signs of life, `watch`; without
    these a process alone. All make the same calls.

    Attributes:
        process: number of this process, from 0.
        count: number of processes.
        started: who started them, for the header.
        agreement: when all stop; None where there is nobody to agree with.
    """

    def __init__(self, store: Store | None = None, watch: Watch | None = None, started: str = "by hand"):
        self.store, self.watch, self.started = store, watch, started
        self.process, self.count = (store.process, store.count) if store else (0, 1)
        self.agreement = watch.agreement if watch else None
        self.uses: Counter[str] = Counter()

    @property
    def first(self) -> bool:
        """Whether this process writes logs and metrics: process 0 does."""
        return self.process == 0

    def exchange(self, name: str, value: Any) -> list[Any]:
        """What every process says, JSON, in the order of their numbers."""
        if self.store is None:
            return [value]
        self.uses[name] += 1  # each topic of the store is for one exchange
        return self.store.exchange(f"{name}-{self.uses[name]}", value)

    def require_same(self, name: str, facts: dict[str, Any]) -> None:
        """Refuse, on all processes, to go on with one for which a fact differs."""
        first, *others = self.exchange(name, facts)
        for process, other in enumerate(others, start=1):
            for fact, value in first.items():
                if other.get(fact) != value:
                    raise UserError(
                        f"process {process} differs from process 0 in {fact} ({other.get(fact)!r} there, {value!r} "
                        "here): start all processes with the same command and the same files"
                    )

    def require_all(self, kind: type[Exception], error: Exception | None) -> None:
        """Raise `error`, or where another process has one of this kind, that; so all go on or none."""
        for process, text in enumerate(self.exchange(kind.__name__, None if error is None else str(error))):
            if text is not None:
                raise error or kind(f"process {process}: {text}")

    def wait(self, name: str) -> None:
        """Wait until all processes are here."""
        self.exchange(name, True)

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[None]:
        """Let an error of this process end the others too.

        An error of JAX mostly means that another process is lost: a collective saw its connection close. The watch
        finds out which, and ends this process.
        """
        try:
            yield
        except TOGETHER:
            raise
        except BaseException as error:
            if self.watch is None:
                raise
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, JaxRuntimeError):
                cause = cause.__cause__ or cause.__context__
            if cause is not None:
                time.sleep(1.5 * self.watch.patience)
            self.watch.end(error)


ALONE = Peers()
