"""A signal asks a run to stop: it stops after the current update, with a checkpoint."""

import signal
import threading
from types import FrameType
from typing import Any

from pmapdp.command.signals import catch
from pmapdp.processes.agreement import StopAgreement


class StopRequest:
    """While it is entered, it notes the first signal that asks the run to stop; a second one has the effect that it had
    before. Several processes have an agreement, so that all stop after the same update.

    Outside the main thread Python cannot catch signals, and they keep their usual effect.
    """

    takes_one = True  # for `command/signals.py`, which ends the process at the second

    def __init__(self, agreement: StopAgreement | None = None):
        self.agreement = agreement
        self.signal: signal.Signals | None = None
        self.came = False
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "StopRequest":
        if threading.current_thread() is threading.main_thread():
            self.before = catch(self)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """A signal has come."""
        if self.came:
            self.__exit__()
            signal.raise_signal(number)
        self.came, self.signal = True, signal.Signals(number)
        if self.agreement:
            self.agreement.signal = self.signal

    def begin(self, step: int) -> None:
        """The updates up to `step` are about to be started."""
        if self.agreement:
            self.agreement.begin(step)
            if self.agreement.reached:
                self.signal = self.agreement.signal

    def __bool__(self) -> bool:
        return self.signal is not None and (self.agreement is None or self.agreement.reached)
