"""This process among those of a run."""

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any, NoReturn

from jax.errors import JaxRuntimeError

from pmapdp.errors import StoppedError, UserError, reason, report
from pmapdp.processes.agreement import StopAgreement
from pmapdp.processes.store import Store
from pmapdp.processes.watch import Watch


class Peers:
    """A process that runs alone; `Joined` is one of several.

    Attributes:
        process: number of this process, from 0.
        count: number of processes.
        started: who started them, for the header.
        agreement: when all stop; None where there is nobody to agree with.
    """

    process = 0
    count = 1
    started = "by hand"
    agreement: StopAgreement | None = None

    @property
    def first(self) -> bool:
        """Whether this process writes logs and metrics: process 0 does."""
        return self.process == 0

    def require_same(self, name: str, facts: dict[str, Any]) -> None:
        """Refuse to go on with a process for which one of the facts differs.

        Raises:
            UserError: naming the first difference; on all processes.
        """

    def require_all(self, name: str, error: Exception | None) -> None:
        """Raise `error`, or that of another process, where there is one; so all go on or none."""
        if error is not None:
            raise error

    def wait(self, name: str) -> None:
        """Wait until all processes are here."""

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[None]:
        """Let an error of this process end the others too."""
        yield


ALONE = Peers()


class Joined(Peers):
    """One of several processes that are connected.

    Args:
        store: what they share.
        watch: its signs of life.
    """

    def __init__(self, store: Store, watch: Watch):
        self.store, self.watch = store, watch
        self.process, self.count, self.agreement = store.process, store.count, watch.agreement
        self.uses: dict[str, int] = {}

    def once(self, name: str) -> str:
        """A name that was not used before, the same on all processes: barriers and keys are for one use."""
        self.uses[name] = self.uses.get(name, 0) + 1
        return f"{name}-{self.uses[name]}"

    def require_same(self, name: str, facts: dict[str, Any]) -> None:  # noqa: D102 (see Peers)
        first, *others = self.store.exchange(self.once(name), facts)
        for process, other in enumerate(others, start=1):
            for fact, value in first.items():
                if other.get(fact) != value:
                    raise UserError(
                        f"process {process} differs from process 0 in {fact} ({other.get(fact)!r} there, {value!r} "
                        "here): start all processes with the same command and the same files"
                    )

    def require_all(self, name: str, error: Exception | None) -> None:  # noqa: D102
        texts = self.store.exchange(self.once(name), None if error is None else str(error))
        super().require_all(name, error)
        for process, text in enumerate(texts):
            if text is not None:
                raise ValueError(f"process {process}: {text}")

    def wait(self, name: str) -> None:  # noqa: D102
        self.store.exchange(self.once(name), True)

    @contextlib.contextmanager
    def failing_together(self) -> Iterator[None]:  # noqa: D102
        try:
            yield
        except StoppedError:  # on all processes after the same step
            raise
        except BaseException as error:
            self.fail(error)

    def fail(self, error: BaseException) -> NoReturn:
        """End this process because of an error, and tell the others.

        An error of JAX mostly means that another process is lost: a collective saw its connection close. The watch
        finds out which, and ends this process.
        """
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, JaxRuntimeError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            time.sleep(1.5 * self.watch.patience)
        with self.watch.ending:
            status = report(error)
            self.watch.tell(reason(error))
            os._exit(status)
