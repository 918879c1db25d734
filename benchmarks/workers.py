"""A process of a benchmark that failed, and what it said, in one sentence."""

import signal

from pmapdp.errors import UserError


class WorkerError(UserError):
    """A process ended without a result; `status` is its exit status, or 1 where a signal ended it."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = max(1, status)


def what_happened(status: int, errors: str) -> str:
    """The line of `errors` (a process' stderr) that says why it ended: the sentence of our commands, or the last."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()] or ["it said nothing"]
    own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    line = (own or lines)[-1]
    return line if status > 0 else f"ended by {signal.Signals(-status).name}: {line}"
