"""Signs of life: every process gives them, and ends with one sentence where another's stay away."""

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from pmapdp.errors import say
from pmapdp.processes import aborts
from pmapdp.processes.agreement import StopAgreement
from pmapdp.processes.place import Place
from pmapdp.processes.store import Store

LOST = 4  # exit status of a process that ended because of another
RESUME = "start the same command again, and a run with a workdir resumes from its last checkpoint"


class Watch:
    """Two threads: one talks to the store, which may block for long; one looks at the clock.

    A beat is at most a twelfth of the timeout, and a process is lost after six tenths of it: with the time to read
    and to tell the others, all have ended before it is over. JAX has heartbeats too; its timeout is set longer, because
    it would abort the process from C++.

    The signs of life are in `store`. After `timeout` seconds without one of a process the others have ended.
    """

    def __init__(self, store: Store, agreement: StopAgreement, timeout: float, place: Place):
        self.store, self.agreement, self.place = store, agreement, place
        self.beat, self.patience = min(2.0, timeout / 12), 0.6 * timeout
        self.closed = threading.Event()
        self.ending = threading.Lock()
        self.answered = time.monotonic()
        self.signs: dict[int, tuple[float, str]] = {}  # of each process: when it last changed, and what it was
        aborts.hold(self.aborting)
        start_thread(self.talk)
        start_thread(self.look_at_the_clock)

    def talk(self) -> None:
        """Give signs of life and read those of the others."""
        host = socket.gethostname()
        number = 0
        while not self.closed.wait(self.beat):
            number += 1
            try:
                self.store.set(f"alive/{self.store.process}", f"{number} {host}")
                alive, ended = self.store.entries("alive"), self.store.entries("ended")
                self.agreement.advance(self.store.entries("stop"))
            except Exception:  # the clock decides what it means that the coordinator does not answer
                continue
            now = self.answered = time.monotonic()
            for process, sign in alive.items():
                if self.signs.get(int(process), (0, ""))[1] != sign:
                    self.signs[int(process)] = now, sign
            for process, content in ended.items():
                if int(process) != self.store.process:
                    time.sleep(self.beat)  # this process may be about to say the same by itself
                    sentence = json.loads(content)
                    said_by = "" if sentence.startswith("process ") else f"process {process} ended: "
                    self.end(said_by + sentence)

    def look_at_the_clock(self) -> None:
        """End the process when another one is lost."""
        while not self.closed.wait(self.beat / 2):
            now = time.monotonic()
            if now - self.answered > self.patience:
                self.end(
                    f"process 0 of {self.store.count}, the coordinator, has not answered for {self.patience:.0f} s "
                    f"(it hangs, or the network between is down): {RESUME}"
                )
            for process, (changed, sign) in list(self.signs.items()):
                if process != self.store.process and now - changed > self.patience:
                    self.end(
                        f"process {process} of {self.store.count} on {sign.split()[1]} has given no sign of life for "
                        f"{self.patience:.0f} s (it was killed, hangs, or has lost its network): {RESUME}"
                    )

    def aborting(self, by_jax: bool) -> None:
        """C++ is about to abort. If that is because process 0 has ended, or because its service met an error, say so;
        else leave it to the clock to say which process is lost."""
        broken = time.monotonic()
        while not self.closed.wait(self.beat / 4):
            if self.place.missing():
                self.end(f"process 0 of {self.store.count}, the coordinator, has ended: {RESUME}")
            if by_jax:
                self.end(f"another process came with a --process-id that one of these has: {RESUME}")
            if time.monotonic() - broken > 1.5 * self.patience:
                self.end(f"a connection between the processes broke: {RESUME}")

    def end(self, sentence: str, status: int = LOST) -> NoReturn:
        """Say why, tell the others, and end the process at once: its main thread may wait for a lost one forever."""
        with self.ending:  # held to the end, so that only one sentence is said
            say(f"error: {sentence}", status)
            self.tell(sentence)
            os._exit(status)

    def tell(self, sentence: str) -> None:
        """Let the other processes end for the same reason. Process 0 waits until they have read it."""
        teller = start_thread(lambda: self.store.set(f"ended/{self.store.process}", json.dumps(sentence)))
        teller.join(2 * self.beat)
        if self.store.process == 0:
            time.sleep(3 * self.beat)

    def close(self) -> None:
        """The run is over: the others may go."""
        self.closed.set()


def start_thread(work: Callable[[], None]) -> threading.Thread:
    """Run `work` in a thread that does not keep the process alive."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread
