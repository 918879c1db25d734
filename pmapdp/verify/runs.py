"""Run a step on N devices, and its reference on one, always from fresh copies of host arrays."""

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.layouts import Layout
from pmapdp.verify.mistakes import named
from pmapdp.verify.rounding import Update

LIBRARIES = ("site-packages", "dist-packages", "<frozen", os.path.dirname(__file__))
DELETED = "has been deleted"  # in the message of JAX for an array whose memory was donated
COMPILED = "/jax/core/compile/backend_compile_duration"


class StepFailedError(Exception):
    """The step raised an error, or returned something other than its reference: one sentence, and its cause."""

    def __init__(self, message: str, cause: str = "error"):
        super().__init__(message)
        self.cause = cause


class Outcome(NamedTuple):
    """What an update returned, by leaf: a list of the copies that the devices hold, as host arrays."""

    state: dict[str, list[np.ndarray]]
    metrics: dict[str, list[np.ndarray]]


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
        return self.place_state(update), *self.place_rest(update)

    def place_state(self, update: Update) -> Any:
        """The state before the update on the devices."""
        with user_code("the layout", self.N):
            return self.layout.place_state(trees.to_host(update.arguments[0]), self.devices)

    def place_rest(self, update: Update) -> tuple[Any, ...]:
        """The batch, and the key where there is one, on the devices."""
        batch, *key = trees.to_host(update.arguments[1:])
        with user_code("the layout", self.N):
            key = [self.layout.place_key(each, self.devices) for each in key]
            return jax.block_until_ready((self.layout.place_batch(batch, self.devices), *key))

    def call(self, *placed: Any) -> tuple[Any, Any]:
        """The step on placed arguments; what it returns has been computed."""
        with user_code("the step", self.N):
            returned = jax.block_until_ready(self.step(*placed))
        if not (isinstance(returned, tuple | list) and len(returned) == 2):
            raise StepFailedError(f"the step must return (state, metrics), and returns {trees.shown(returned)}")
        return returned[0], returned[1]

    def run(self, update: Update) -> Outcome:
        """The update by the step, from the reference's state."""
        return self.read(*self.call(*self.place(update)), update)

    def read(self, state: Any, metrics: Any, update: Update) -> Outcome:
        """What the devices hold, before the next update donates it."""
        if self.layout.fetch is not None:
            with user_code("fetch of the layout", self.N):
                state = self.layout.fetch(state)
        return Outcome(self.copies(state, update.new[0], "state"), self.copies(metrics, update.new[1], "metrics"))

    def copies(self, got: Any, wanted: Any, what: str) -> dict[str, list[np.ndarray]]:
        """The devices' copies of each leaf of a tree, compared in names and shapes with what the reference returns."""
        got, wanted = trees.named(got), trees.named(wanted)
        if missing := sorted(set(wanted) ^ set(got)):
            here, there = ("the step", "the reference") if missing[0] in got else ("the reference", "the step")
            raise StepFailedError(
                f"the {what} has a leaf {missing[0]} in what {here} returns and not in what {there} returns; "
                "both must return the same pytree"
            )
        held = {}
        for name, leaf in wanted.items():
            copies = trees.copies(got[name], np.shape(leaf), self.N)
            if copies is None:
                raise StepFailedError(
                    f"the {what}'s leaf {name} has the shape {list(np.shape(got[name]))}, and {list(np.shape(leaf))} "
                    f"in the reference; on {self.N} devices it may have that shape, or "
                    f"{[self.N, *np.shape(leaf)]} with a device axis (or give a Layout with your own fetch)"
                )
            held[name] = copies
        return held


class Ran(NamedTuple):
    """The step's updates on N devices, each on the state that the one before returned."""

    trial: Trial
    outcomes: list[Outcome]  # what each returned
    compilations: list[int]  # programs compiled in each
    placed: tuple[Any, ...]  # state after the last update; batch and key of the first


def step_updates(trial: Trial, updates: list[Update]) -> Ran:
    """Make the reference's updates by the step."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event == COMPILED:
            compiled.append(event)

    state = trial.place_state(updates[0])
    outcomes, compilations = [], []
    for update in updates:
        rest, before = trial.place_rest(update), len(compiled)
        jax.monitoring.register_event_duration_secs_listener(listen)
        try:
            state, metrics = trial.call(state, *rest)
        finally:
            jax.monitoring.unregister_event_duration_listener(listen)
        compilations.append(len(compiled) - before)
        outcomes.append(trial.read(state, metrics, update))
    return Ran(trial, outcomes, compilations, (state, *trial.place_rest(updates[0])))


@contextlib.contextmanager
def user_code(what: str, N: int) -> Iterator[None]:
    """Errors raised inside become a `StepFailedError` that says where in the user's program they arose."""
    try:
        yield
    except Exception as error:
        message = f"{what} raised an error on {N} device{'s' * (N > 1)}, {blame(error)}"
        if DELETED in str(error):
            cause, cure = named("used after donation")
            raise StepFailedError(f"{message} {cure}", cause) from error
        raise StepFailedError(message) from error


def blame(error: BaseException) -> str:
    """The user's own line in which an error arose, and the error: `file.py:12 in loss: TypeError: message`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(library in frame.filename for library in LIBRARIES)]
    where = f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: " if own else ""
    message = (str(error).strip().splitlines() or [""])[0]
    return f"{where}{type(error).__name__}: {message}"
