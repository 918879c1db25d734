"""A step on N devices: placed and called from fresh copies of host arrays, and read from every device."""

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.errors import UserError
from pmapdp.verify import trees
from pmapdp.verify.layouts import Layout, sharding
from pmapdp.verify.mistakes import name_cause
from pmapdp.verify.reference import Reference, present, split_result
from pmapdp.verify.report import FAILED, CheckError
from pmapdp.verify.rounding import Update
from pmapdp.verify.trees import Leaves, few

Copies = dict[str, list[np.ndarray]]  # what the devices hold of each leaf
# A part of a message of JAX -> the mistake that it is about.
MESSAGES = {"has been deleted": "used after donation", "which require replication": "unseen replication"}
LIBRARIES = ("site-packages", "dist-packages", "<frozen", os.path.dirname(__file__))


class Trial(NamedTuple):
    """A step on some devices, and its reference on one."""

    step: Callable  # as the user wrote it
    reference: Reference
    layout: Layout  # how `step` wants its arguments
    devices: Sequence[jax.Device]  # N of them

    def place(self, update: Update) -> tuple[Any, ...]:
        """Put state, batch and key on the devices, by the layout; their memory is nobody else's."""
        state, batch, *key = trees.to_host(update.arguments)
        own, layout = self.reference.is_own, self.layout
        with user_code("the layout"):
            if layout.place_own is None:
                state = layout.place_state(state, self.devices)
            else:
                shared = trees.map_named(lambda path, leaf: None if own(path) else leaf, state)
                each = trees.map_named(lambda path, leaf: leaf if own(path) else None, state)
                shared, each = layout.place_state(shared, self.devices), self.place_own(each)
                state = jax.tree.map(lambda a, b: b if a is None else a, shared, each, is_leaf=lambda x: x is None)
            if batch is not None:
                batch = self.place_own(batch) if own("batch") else layout.place_batch(batch, self.devices)
            return jax.block_until_ready((state, batch, *map(self.place_key, key)))

    def place_own(self, tree: Any) -> Any:
        """Give each device its row of leaves `[N, ...]`."""
        N = len(self.devices)
        if wrong := [np.shape(leaf) for leaf in jax.tree.leaves(tree) if np.shape(leaf)[:1] != (N,)]:
            raise CheckError(f"a leaf that per_device names is {list(wrong[0])}, which are not {N} rows")
        return (self.layout.place_own or self.layout.place_state)(tree, self.devices)

    def place_key(self, key: Any) -> Any:
        """Place the key. If your layout makes one for each device, `[N, ...]`, they are split over the devices."""
        if self.reference.is_own("key"):
            return self.place_own(key)
        placed, N = self.layout.place_key(key, self.devices), len(self.devices)
        if np.shape(placed) == (N, *np.shape(key)) and len(placed.sharding.device_set) < N:
            return jax.device_put(placed, sharding(self.devices, "data"))
        return placed

    def call(self, *placed: Any) -> dict[str, Any]:
        """Return the "state" and the "metrics" that the step returns for placed arguments, computed."""
        with user_code("the step"):
            returned = jax.block_until_ready(self.step(*present(*placed)))
        return split_result(returned, self.reference.form, "the step")

    def run(self, update: Update) -> Copies:
        """Make an update from the reference's state."""
        return self.read(self.call(*self.place(update)), update.values)

    def read(self, returned: dict[str, Any], values: Leaves) -> Copies:
        """Return what the devices hold. Names and shapes must be as in the reference's `values`."""
        if self.layout.fetch is not None:
            with user_code("fetch of the layout"):
                returned = returned | {"state": self.layout.fetch(returned["state"])}
        got = self.reference.leaves(returned)
        if odd := sorted(set(got) ^ set(values)):
            who, other = ("step", "reference") if odd[0] in got else ("reference", "step")
            message = f"the {who} returns {few(odd)}, and the {other} does not: return it from both, or from neither"
            raise CheckError(message, FAILED, "error")
        held = {name: trees.copies(leaf, values[name].shape, len(self.devices)) for name, leaf in got.items()}
        for name in (name for name, copies in held.items() if copies is None):
            raise CheckError(
                f"{name} is {list(np.shape(got[name]))} in the step and {list(values[name].shape)} in the reference: "
                "return the same shape, or on N devices also [N, ...] (or give a Layout with your own fetch)",
                FAILED,
                "error",
            )
        return {name: copies for name, copies in held.items() if copies is not None}


@contextlib.contextmanager
def user_code(what: str) -> Iterator[None]:
    """Turn errors of your program into a `CheckError` that says where they arose."""
    try:
        yield
    except (CheckError, UserError):
        raise
    except Exception as error:
        message, cause = f"{what} raised an error, {blame(error)}", "error"
        for part, mistake in MESSAGES.items():
            if part in str(error):
                message, cause = f"{message} {name_cause(mistake)[1]}", mistake
        raise CheckError(message, FAILED, cause) from error


def blame(error: BaseException) -> str:
    """Return the line of your program in which an error arose, and its message: `file.py:12 in loss: TypeError: x`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(library in frame.filename for library in LIBRARIES)]
    where = f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: " if own else ""
    return f"{where}{type(error).__name__}: {str(error).strip()}"
