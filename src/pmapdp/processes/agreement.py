"""After which update all processes stop, when a signal reached one of them or all."""

import signal
import threading

from pmapdp.processes.store import Store


class StopAgreement:
    """Agrees on the update after which to stop, without a collective.

    No process may stop on its own: the others would wait for it in the next all-reduce. So a process that got a
    signal publishes which updates it has begun, and begins no others until it knows what all have begun. The rest
    do the same once they see that (in a thread, as the main one may be waiting for the devices). All stop after the
    dispatch that follows the furthest. The idea is that of `multihost_utils.reached_preemption_sync_point`, which
    knows no other signal than SIGTERM and takes its handler.
    """

    def __init__(self, store: Store):
        self.store = store
        self.changed = threading.Condition()
        self.begun = 0
        self.published = False
        self.last: int | None = None
        self.signal: signal.Signals | None = None

    def begin(self, step: int) -> None:
        """Say that the updates up to `step` are about to be started; waits while the processes are agreeing."""
        with self.changed:
            while self.published and self.last is None:
                self.changed.wait()
            self.begun = step

    @property
    def reached(self) -> bool:
        """Whether all stop after the updates that were begun last."""
        return self.last is not None and self.begun >= self.last

    def advance(self) -> None:
        """Go on with agreeing; called now and then."""
        if self.last is not None:
            return
        stops = self.store.read("stop")  # by process: the signal, and the updates that it has begun
        if not self.published and (self.signal or stops):
            self.signal = self.signal or signal.Signals(next(iter(stops.values()))[0])
            with self.changed:
                self.published = True
                begun = self.begun
            self.store.publish("stop", [self.signal, begun])
        elif len(stops) == self.store.count:
            with self.changed:
                self.last = 1 + max(begun for _, begun in stops.values())
                self.changed.notify_all()
