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
from pmapdp.verify.sentences import sentence

HERE = os.path.dirname(__file__)
LIBRARIES = ("site-packages", "dist-packages", "<frozen", HERE)
DELETED = "has been deleted"  # in the message of JAX for an array whose memory was donated


class StepFailedError(Exception):
    """The step raised an error, or returned something other than its reference: one sentence, and its cause."""

    def __init__(self, message: str, cause: str = "error"):
        super().__init__(message)
        self.cause = cause


class Outcome(NamedTuple):
    """What an update returned, by leaf: a list with a host array for each device (or one alone, as in `per_device`)."""

    state: dict[str, list[np.ndarray]]
    metrics: dict[str, list[np.ndarray]]
    disagreement: dict[str, float]  # of the shards that should be equal


class Trial(NamedTuple):
    """A step on some devices beside its reference; all arguments are host arrays as one device has them."""

    step: Callable  # (state, batch, key) -> (state, metrics), or without `key` where that is None
    reference: Callable  # the same
    layout: Layout  # how `step` wants its arguments
    devices: Sequence[jax.Device]  # those of the step, N of them

    @property
    def N(self) -> int:  # noqa: N802
        """Number of devices."""
        return len(self.devices)

    def run_reference(self, state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        """New state and metrics of one device, on the host."""
        return trees.to_host(call(self.reference, *trees.to_host((state, batch, key))))

    def place(self, state: Any, batch: Any, key: Any) -> tuple[Any, Any, Any]:
        """The arguments of the step on the devices; their memory is nobody else's."""
        return self.place_state(trees.to_host(state)), *self.place_rest(batch, key)

    def place_state(self, state: Any) -> Any:
        """The state on the devices, by the layout."""
        with user_code("the layout", self.N):
            return self.layout.place_state(state, self.devices)

    def place_rest(self, batch: Any, key: Any) -> tuple[Any, Any]:
        """Batch and key on the devices, by the layout."""
        batch, key = trees.to_host((batch, key))
        with user_code("the layout", self.N):
            key = None if key is None else self.layout.place_key(key, self.devices)
            return jax.block_until_ready((self.layout.place_batch(batch, self.devices), key))

    def call(self, state: Any, batch: Any, key: Any) -> tuple[Any, Any]:
        """The step on placed arguments; what it returns has been computed."""
        with user_code("the step", self.N):
            return jax.block_until_ready(call(self.step, state, batch, key))

    def run(self, state: Any, batch: Any, key: Any, like: tuple[Any, Any]) -> Outcome:
        """One update by the step; `like` is what the reference returns."""
        return self.read(*self.call(*self.place(state, batch, key)), like)

    def read(self, state: Any, metrics: Any, like: tuple[Any, Any]) -> Outcome:
        """What the devices hold, before the next update donates it."""
        disagreement = {name: trees.disagreement(leaf) for name, leaf in trees.named(state).items()}
        if self.layout.fetch is not None:
            with user_code("fetch of the layout", self.N):
                state = self.layout.fetch(state)
        return Outcome(self.leaves(state, like[0], "state"), self.leaves(metrics, like[1], "metrics"), disagreement)

    def leaves(self, got: Any, like: Any, what: str) -> dict[str, list[np.ndarray]]:
        """A tree as what each device holds of each leaf, compared in names and shapes with the reference's."""
        got, like = trees.named(got), trees.named(like)
        if missing := sorted(set(like) ^ set(got)):
            where = "the step" if missing[0] in got else "the reference"
            raise StepFailedError(
                f"the {what} has a leaf {missing[0]} in what {where} returns and not in what the other one returns; "
                "both must return the same pytree"
            )
        held = {name: trees.per_device(got[name], np.shape(like[name]), self.N) for name in like}
        for name, values in held.items():
            if values is None:
                raise StepFailedError(
                    f"the {what}'s leaf {name} has the shape {list(np.shape(got[name]))}, and "
                    f"{list(np.shape(like[name]))} in the reference; on {self.N} devices it may have that shape, or "
                    f"{[self.N, *np.shape(like[name])]} with a device axis (or give a Layout with your own fetch)"
                )
        return held  # type: ignore[return-value]


def given(state: Any, batch: Any, key: Any) -> list[Any]:
    """The arguments of a step or a reference: with a key where there is one."""
    return [state, batch] if key is None else [state, batch, key]


def call(function: Callable, state: Any, batch: Any, key: Any) -> Any:
    """What a step or a reference returns."""
    return function(*given(state, batch, key))


@contextlib.contextmanager
def user_code(what: str, N: int) -> Iterator[None]:
    """Errors raised inside become a `StepFailedError` that says where in the user's program they arose."""
    try:
        yield
    except Exception as error:
        message = f"{what} raised an error on {N} device{'s' * (N > 1)}, {blame(error)}"
        if DELETED in str(error):
            cause = "used after donation"
            raise StepFailedError(f"{message} {sentence(cause)}", cause) from error
        raise StepFailedError(message) from error


def blame(error: BaseException) -> str:
    """The user's own line in which an error arose, and the error: `file.py:12 in loss: TypeError: message`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(library in frame.filename for library in LIBRARIES)]
    where = f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: " if own else ""
    message = (str(error).strip().splitlines() or [""])[0]
    return f"{where}{type(error).__name__}: {message}"
