"""Run a step on N devices, and its reference on one, always from fresh copies of host arrays."""

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.errors import reason
from pmapdp.verify import trees
from pmapdp.verify.layouts import Layout
from pmapdp.verify.mistakes import named
from pmapdp.verify.report import NotCheckedError
from pmapdp.verify.rounding import Update

LIBRARIES = ("site-packages", "dist-packages", "<frozen", os.path.dirname(__file__))
# A part of a message of JAX -> the mistake that it is about.
MESSAGES = {"has been deleted": "used after donation", "which require replication": "unseen replication"}
COMPILED = "/jax/core/compile/backend_compile_duration"


class StepFailedError(Exception):
    """The step raised an error, or returned something other than its reference: one sentence, and its cause."""

    def __init__(self, message: str, cause: str = "error"):
        super().__init__(message)
        self.cause = cause


# What an update returned, by "state" and "metrics" and then by leaf: the devices' copies, as host arrays.
Outcome = dict[str, dict[str, list[np.ndarray]]]


class Trial(NamedTuple):
    """A step on some devices beside its reference."""

    step: Callable  # (state, batch, key) -> (state, metrics), or without `key` where that is None
    reference: Callable  # the same
    layout: Layout  # how `step` wants its arguments
    devices: Sequence[jax.Device]  # those of the step, N of them

    @property
    def N(self) -> int:  # noqa: N802
        """Number of devices."""
        return len(self.devices)

    def place(self, update: Update) -> tuple[Any, ...]:
        """The arguments of the step on the devices, by the layout; their memory is nobody else's."""
        state, batch, *key = trees.to_host(update.arguments)
        with user_code("the layout", self.N):
            placed_state = self.layout.place_state(state, self.devices)
            keys = [self.layout.place_key(each, self.devices) for each in key]
            return jax.block_until_ready((placed_state, self.layout.place_batch(batch, self.devices), *keys))

    def call(self, *placed: Any) -> dict[str, Any]:
        """What the step returns for placed arguments, computed: the "state" and the "metrics"."""
        with user_code("the step", self.N):
            returned = jax.block_until_ready(self.step(*placed))
        return trees.parts_of(returned, "the step", StepFailedError)

    def run(self, update: Update) -> Outcome:
        """The update by the step, from the reference's state."""
        return self.read(self.call(*self.place(update)), update)

    def read(self, returned: dict[str, Any], update: Update) -> Outcome:
        """What the devices hold, before the next update donates it."""
        if self.layout.fetch is not None:
            with user_code("fetch of the layout", self.N):
                returned = returned | {"state": self.layout.fetch(returned["state"])}
        return {part: self.copies(tree, update.new[part], part) for part, tree in returned.items()}

    def copies(self, got: Any, wanted: Any, what: str) -> dict[str, list[np.ndarray]]:
        """The devices' copies of each leaf of a tree, compared in names and shapes with what the reference returns."""
        got, wanted, held = trees.named(got), trees.named(wanted), {}
        for name in got | wanted:
            here, there = (list(np.shape(tree[name])) if name in tree else "absent" for tree in (got, wanted))
            copies = None if "absent" in (here, there) else trees.copies(got[name], np.shape(wanted[name]), self.N)
            if copies is None:
                raise StepFailedError(
                    f"the leaf {name} of the {what} is {here} in the step and {there} in the reference: return the "
                    f"same shapes, on {self.N} devices also with a device axis [{self.N}, ...] (or give a Layout with "
                    "your own fetch)"
                )
            held[name] = copies
        return held


class Ran(NamedTuple):
    """The step's updates on N devices, each on the state that the one before returned."""

    trial: Trial
    outcomes: list[Outcome]  # what each returned
    differences: list[dict[str, dict[str, tuple[float, float]]]]  # the same, by how much each leaf is off and may be
    compilations: list[int]  # programs compiled in each
    programs: list[Any]  # those compiled in the first
    placed: tuple[Any, ...]  # state after the last update; batch and key of the first

    def first_wrong(self, part: str) -> int | None:
        """The first update, counted from 0, with a wrong leaf in the state or in the metrics."""
        return next((n for n, found in enumerate(self.differences) if wrong(found[part])), None)


def wrong(differences: dict[str, tuple[float, float]]) -> dict[str, tuple[float, float]]:
    """Those of the leaves that are off by more than rounding allows."""
    return {leaf: (size, tolerance) for leaf, (size, tolerance) in differences.items() if size > tolerance}


def step_updates(trial: Trial, updates: list[Update]) -> Ran:
    """Make the reference's updates by the step."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILED:
            compiled.append(event)

    client: Any = trial.devices[0].client
    state, *_ = trial.place(updates[0])
    outcomes: list[Outcome] = []
    differences, compilations, programs = [], [], []
    for update in updates:
        _, *rest = trial.place(update)
        before, known = len(compiled), client.live_executables()
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            returned = trial.call(state, *rest)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        compilations.append(len(compiled) - before)
        if not outcomes:
            identities = set(map(id, known))
            programs = [each for each in client.live_executables() if id(each) not in identities]
        outcomes.append(trial.read(returned, update))
        differences.append({part: want.differences(outcomes[-1][part]) for part, want in update.want.items()})
        state = returned["state"]
    return Ran(trial, outcomes, differences, compilations, programs, (state, *trial.place(updates[0])[1:]))


@contextlib.contextmanager
def user_code(what: str, N: int) -> Iterator[None]:
    """Errors raised inside become a `StepFailedError` that says where in the user's program they arose."""
    try:
        yield
    except NotCheckedError:
        raise
    except Exception as error:
        message = f"{what} raised an error on {N} device{'s' * (N > 1)}, {blame(error)}"
        for part, known in MESSAGES.items():
            if part in str(error):
                cause, cure = named(known)
                raise StepFailedError(f"{message} {cure}", cause) from error
        raise StepFailedError(message) from error


def blame(error: BaseException) -> str:
    """The user's own line in which an error arose, and the error: `file.py:12 in loss: TypeError: message`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(library in frame.filename for library in LIBRARIES)]
    where = f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: " if own else ""
    return f"{where}{type(error).__name__}: {reason(error)}"
