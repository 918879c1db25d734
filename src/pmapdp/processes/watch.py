"""Signs of life: every process gives them, and ends with one sentence where another's stay away."""

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from pmapdp.command.ending import report
from pmapdp.errors import UserError, reason
from pmapdp.processes import aborts
from pmapdp.processes.agreement import StopAgreement
from pmapdp.processes.store import Store

RESUME = "start the same command again, and a run with a workdir resumes from its last checkpoint"


class LostError(UserError):
    """This process ends because of another one; commands exit with status 4."""

    status = 4


class Watch:
    """Two threads: one talks to the store, which may block for long; one looks at the clock.

    A beat is at most a twelfth of the timeout, and a process is lost after six tenths of it: with the time to read
    and to tell the others, all have ended before it is over. JAX has heartbeats too; its timeout is set longer, because
    it does not say which process is lost.

    The signs of life are in `store`. After `timeout` seconds without one of a process the others have ended.
    """

    def __init__(self, store: Store, agreement: StopAgreement, timeout: float):
        self.store, self.agreement = store, agreement
        self.beat, self.patience = min(2.0, timeout / 12), 0.6 * timeout
        self.closed = threading.Event()
        self.ending = threading.Lock()
        self.hosts = store.exchange("host", socket.gethostname())
        self.signs = [(time.monotonic(), 0)] * store.count  # of each process: when it last changed, and what it was
        aborts.hold(self.aborting)
        start_thread(self.talk)
        start_thread(self.look_at_the_clock)

    def talk(self) -> None:
        """Give signs of life and read those of the others."""
        number = 0
        while not self.closed.wait(self.beat):
            number += 1
            try:
                self.store.publish("alive", number)
                alive, ended = self.store.read("alive"), self.store.read("ended")
                self.agreement.advance()
            except Exception:  # the clock decides what it means that process 0 does not answer
                continue
            for process, sign in alive.items():
                if sign != self.signs[process][1]:
                    self.signs[process] = time.monotonic(), sign
            for process, sentence in ended.items():
                if process != self.store.process:
                    time.sleep(self.beat)  # this process may be about to say the same by itself
                    self.end(LostError(sentence))

    def look_at_the_clock(self) -> None:
        """End the process when another one is lost."""
        while not self.closed.wait(self.beat / 2):
            for process, (changed, _) in enumerate(self.signs):
                if process != self.store.process and time.monotonic() - changed > self.patience:
                    self.end(
                        LostError(
                            f"process {process} of {self.store.count} on {self.hosts[process]} has given no sign of "
                            f"life for {self.patience:.0f} s (it was killed, hangs, or has lost its network): {RESUME}"
                        )
                    )

    def aborting(self, by_jax: bool) -> None:
        """C++ is about to abort, because a connection broke. Where that is one of gloo's, the clock says which process
        is lost. JAX's client does not say more than that it cannot go on, and answers nothing any more."""
        if by_jax and not self.closed.is_set():
            twice = "another process came with a --process-id that one of these has"
            self.end(LostError(f"process 0, the coordinator, has ended, or {twice}: {RESUME}"))
        if not self.closed.wait(1.5 * self.patience):
            self.end(LostError(f"a connection between the processes broke: {RESUME}"))

    def end(self, error: BaseException) -> NoReturn:
        """Report an error, tell the other processes, and end this one at once: its main thread may wait for a lost one
        forever. Process 0 waits until they have read it."""
        told = reason(error) if isinstance(error, LostError) else f"process {self.store.process} ended: {reason(error)}"
        with self.ending:  # held to the end, so that only one error is reported
            status = report(error)
            start_thread(lambda: self.store.publish("ended", told)).join(2 * self.beat)
            if self.store.process == 0:
                time.sleep(3 * self.beat)
            os._exit(status)


def start_thread(work: Callable[[], None]) -> threading.Thread:
    """Run `work` in a thread that does not keep the process alive."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
