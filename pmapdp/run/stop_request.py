"""A signal asks a run to stop: it stops after the current update, with a checkpoint."""

import contextlib
import signal
import threading
from types import FrameType

from jax.experimental.multihost_utils import reached_preemption_sync_point

from pmapdp.cli import SIGNALS, catch_signals
from pmapdp.distributed import SINGLE_PROCESS, Peers


class StopRequest:
    """While it is entered, it notes the first signal that asks the run to stop; a second one has the effect that it had
    before.

    Of several processes none may stop on its own, because the others would wait for it in the next all-reduce. There
    JAX takes SIGTERM and lets all agree on the update after which they stop; the other signals are passed on as one.

    Outside the main thread Python cannot catch signals, and they keep their usual effect.
    """

    def __init__(self, peers: Peers = SINGLE_PROCESS):
        self.peers = peers
        self.signal: signal.Signals | None = None
        self.came = self.agreed = False
        self.handlers = contextlib.ExitStack()

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            numbers = [each for each in SIGNALS if self.peers.count == 1 or each != signal.SIGTERM]
            self.handlers.enter_context(catch_signals(self, numbers))
        return self

    def __exit__(self, *error: object) -> None:
        self.handlers.close()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """A signal has come."""
        if self.came:
            self.__exit__()
            signal.raise_signal(number)
        self.came, self.signal = True, signal.Signals(number)
        if self.peers.count > 1:
            signal.raise_signal(signal.SIGTERM)

    def begin(self, step: int) -> None:
        """Update `step` is about to be started; waits while the processes are agreeing."""
        if self.peers.count > 1 and not self.agreed and reached_preemption_sync_point(step):
            came = max(self.peers.exchange(int(self.signal or 0)))
            self.signal, self.agreed = signal.Signals(came or signal.SIGTERM), True

    def __bool__(self) -> bool:
        return self.signal is not None and (self.peers.count == 1 or self.agreed)
