"""A step on N devices beside its reference on one: call it, always from fresh copies of host arrays."""

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
from pmapdp.verify.report import NotCheckedError, StepFailedError
from pmapdp.verify.rounding import Update

Copies = dict[str, list[np.ndarray]]  # what the devices hold of each leaf
# A part of a message of JAX -> the mistake that it is about.
MESSAGES = {"has been deleted": "used after donation", "which require replication": "unseen replication"}
LIBRARIES = ("site-packages", "dist-packages", "<frozen", os.path.dirname(__file__))


class Trial(NamedTuple):
    """A step on some devices beside its reference."""

    step: Callable  # (state, batch, key) -> (state, metrics), or without `key` where that is None
    reference: Any  # the same, jitted
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

    def run(self, update: Update) -> dict[str, Copies]:
        """The update by the step, from the reference's state."""
        return self.read(self.call(*self.place(update)), update)

    def read(self, returned: dict[str, Any], update: Update) -> dict[str, Copies]:
        """What the devices hold, before the next update donates it; names and shapes must be the reference's."""
        if self.layout.fetch is not None:
            with user_code("fetch of the layout", self.N):
                returned = returned | {"state": self.layout.fetch(returned["state"])}
        held: dict[str, Copies] = {}
        for part, tree in returned.items():
            got, wanted, held[part] = trees.named(tree), update.values[part], {}
            for name in got | wanted:
                here, there = (list(np.shape(tree[name])) if name in tree else "absent" for tree in (got, wanted))
                copies = None if "absent" in (here, there) else trees.copies(got[name], wanted[name].shape, self.N)
                if copies is None:
                    raise StepFailedError(
                        f"the leaf {name} of the {part} is {here} in the step and {there} in the reference: return the "
                        f"same shapes, on {self.N} devices also with a device axis [{self.N}, ...] (or give a Layout "
                        "with your own fetch)"
                    )
                held[part][name] = copies
        return held


@contextlib.contextmanager
def user_code(what: str, N: int) -> Iterator[None]:
    """Errors raised inside become a `StepFailedError` that says where in the user's program they arose."""
    try:
        yield
    except NotCheckedError:
        raise
    except Exception as error:
        message = f"{what} raised an error on {N} device{'s' * (N > 1)}, {blame(error)}"
        for part, cause in MESSAGES.items():
            if part in str(error):
                raise StepFailedError(f"{message} {named(cause)[1]}", cause) from error
        raise StepFailedError(message) from error


def blame(error: BaseException) -> str:
    """The user's own line in which an error arose, and the error: `file.py:12 in loss: TypeError: message`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(library in frame.filename for library in LIBRARIES)]
    where = f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: " if own else ""
    return f"{where}{type(error).__name__}: {reason(error)}"
