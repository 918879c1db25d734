"""A step on N devices beside its reference on one: call it, always from fresh copies of host arrays."""

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.errors import UserError, reason
from pmapdp.verify import trees
from pmapdp.verify.convention import Convention, few
from pmapdp.verify.layouts import Layout, sharding
from pmapdp.verify.mistakes import named
from pmapdp.verify.reference_program import Reference
from pmapdp.verify.report import NotCheckedError, StepFailedError
from pmapdp.verify.rounding import Update

Copies = dict[str, list[np.ndarray]]  # what the devices hold of each leaf
# A part of a message of JAX -> the mistake that it is about.
MESSAGES = {"has been deleted": "used after donation", "which require replication": "unseen replication"}
LIBRARIES = ("site-packages", "dist-packages", "<frozen", os.path.dirname(__file__))


class Trial(NamedTuple):
    """A step on some devices beside its reference."""

    step: Callable  # as the user wrote it
    reference: Reference
    convention: Convention  # of the arguments and results of both
    layout: Layout  # how `step` wants its arguments
    devices: Sequence[jax.Device]  # those of the step, N of them
    own: Callable[[str], bool]  # whether a leaf of this name belongs to a device

    @property
    def N(self) -> int:  # noqa: N802
        """Number of devices."""
        return len(self.devices)

    def place(self, update: Update) -> tuple[Any, ...]:
        """State, batch and key on the devices, by the layout; their memory is nobody else's."""
        state, batch, *key = trees.to_host(update.arguments)
        with user_code("the layout", self.N):
            placed = self.place_state(state)
            place_batch = self.place_own if self.own("batch") else self.layout.place_batch
            batch = None if batch is None else place_batch(batch, self.devices)
            keys = [self.place_key(each) for each in key]
            return jax.block_until_ready((placed, batch, *keys))

    def place_state(self, state: Any) -> Any:
        """The state; leaves `[N, ...]` that belong to a device are split by ready layouts."""
        if self.layout.place_own is None:
            return self.layout.place_state(state, self.devices)
        own = trees.map_named(lambda path, leaf: leaf if self.own(path) else None, state)
        rest = trees.map_named(lambda path, leaf: None if self.own(path) else leaf, state)
        return trees.combine(self.layout.place_state(rest, self.devices), self.place_own(own, self.devices))

    def place_own(self, tree: Any, devices: Sequence[jax.Device]) -> Any:
        """Leaves `[N, ...]` of which each device gets its row."""
        if wrong := [np.shape(leaf) for leaf in jax.tree.leaves(tree) if np.shape(leaf)[:1] != (self.N,)]:
            raise NotCheckedError(f"a leaf that per_device names is {list(wrong[0])}, which are not {self.N} rows")
        return (self.layout.place_own or self.layout.place_state)(tree, devices)

    def place_key(self, key: Any) -> Any:
        """The key; one for each device `[N, ...]` from a layout of the user's is split over the devices."""
        if self.own("key"):
            return self.place_own(key, self.devices)
        placed = self.layout.place_key(key, self.devices)
        if np.shape(placed) == (self.N, *np.shape(key)) and len(placed.sharding.device_set) < self.N:
            return jax.device_put(placed, sharding(self.devices, "data"))
        return placed

    def call(self, state: Any, *rest: Any) -> dict[str, Any]:
        """What the step returns for placed arguments, computed: the "state", the "metrics" and perhaps a new "key"."""
        with user_code("the step", self.N):
            returned = jax.block_until_ready(self.step(*self.convention.arguments(state, *rest)))
        return self.convention.split(returned, "the step")

    def run(self, update: Update) -> dict[str, Copies]:
        """The update by the step, from the reference's state."""
        return self.read(self.call(*self.place(update)), update)

    def read(self, returned: dict[str, Any], update: Update) -> dict[str, Copies]:
        """What the devices hold, before the next update donates it; names and shapes must be the reference's."""
        if self.layout.fetch is not None:
            with user_code("fetch of the layout", self.N):
                returned = returned | {"state": self.layout.fetch(returned["state"])}
        found = {"state": trees.with_key(returned), "metrics": trees.named(returned["metrics"])}
        held: dict[str, Copies] = {}
        for part, got in found.items():
            wanted, held[part] = update.values[part], {}
            for lacking, others, who in ((got, wanted, "step"), (wanted, got, "reference")):
                if missing := [name for name in others if name not in lacking]:
                    other = "reference" if who == "step" else "step"
                    raise StepFailedError(
                        f"the {who} returns no leaf {few(missing)} of the {part}, which the {other} returns: "
                        f"return it from both, or from neither"
                    )
            for name, leaf in got.items():
                copies = trees.copies(leaf, wanted[name].shape, self.N)
                if copies is None:
                    raise StepFailedError(
                        f"the leaf {name} of the {part} is {list(np.shape(leaf))} in the step and "
                        f"{list(wanted[name].shape)} in the reference: return the same shape, or on N devices also "
                        f"[N, ...] (or give a Layout with your own fetch)"
                    )
                held[part][name] = copies
        return held


@contextlib.contextmanager
def user_code(what: str, N: int) -> Iterator[None]:
    """Errors raised inside become a `StepFailedError` that says where in the user's program they arose."""
    try:
        yield
    except (NotCheckedError, UserError):
        raise
    except Exception as error:
        message = f"{what} raised an error, {blame(error)}"
        for part, cause in MESSAGES.items():
            if part in str(error):
                raise StepFailedError(f"{message} {named(cause)[1]}", cause) from error
        raise StepFailedError(message) from error


def blame(error: BaseException) -> str:
    """The user's own line in which an error arose, and the whole message: `file.py:12 in loss: TypeError: message`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(library in frame.filename for library in LIBRARIES)]
    where = f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: " if own else ""
    return f"{where}{type(error).__name__}: {str(error).strip() or reason(error)}"
