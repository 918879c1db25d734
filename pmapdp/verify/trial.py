"""A step on N devices: placed and called from fresh copies of host arrays, and read from every device."""

import os
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.layouts import Layout
from pmapdp.verify.reference import Reference, Update, present, split_result
from pmapdp.verify.report import CheckError
from pmapdp.verify.trees import Leaves, few

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
        own, layout, devices, N = self.reference.is_own, self.layout, self.devices, len(self.devices)
        rows = trees.map_named(lambda path, leaf: leaf if own(path) else None, state)
        if wrong := [np.shape(leaf) for leaf in jax.tree.leaves(rows) if np.shape(leaf)[:1] != (N,)]:
            raise CheckError(f"a leaf that per_device names is {list(wrong[0])}, which are not {N} rows")
        state = layout.place_state(trees.map_named(lambda path, x: None if own(path) else x, state), devices)
        rows = layout.place_own(rows, devices)
        state = jax.tree.map(lambda a, b: b if a is None else a, state, rows, is_leaf=lambda x: x is None)
        batch = None if batch is None else layout.place_batch(batch, devices)
        key = [(layout.place_own if own("key") else layout.place_key)(each, devices) for each in key]
        return jax.block_until_ready((state, batch, *key))

    def call(self, *placed: Any) -> dict[str, Any]:
        """Return the "state" and the "metrics" that the step returns for placed arguments, computed."""
        returned = jax.block_until_ready(self.step(*present(*placed)))
        return split_result(returned, self.reference.form, "the step")

    def run(self, update: Update) -> dict[str, list[np.ndarray]]:
        """Make an update from the reference's state."""
        return self.read(self.call(*self.place(update)), update.values)

    def read(self, returned: dict[str, Any], values: Leaves) -> dict[str, list[np.ndarray]]:
        """Return the devices' copies of each leaf. Names and shapes must be as in the reference's `values`."""
        if self.layout.fetch is not None:
            returned = returned | {"state": self.layout.fetch(returned["state"])}
        got = self.reference.leaves(returned)
        if odd := sorted(set(got) ^ set(values)):
            who = "step" if odd[0] in got else "reference"
            raise CheckError(f"only the {who} returns {few(odd)}: return it from both, or from neither", "FAILED")
        copies = {name: trees.copies(leaf, values[name].shape, len(self.devices)) for name, leaf in got.items()}
        for name in (name for name, found in copies.items() if not found):
            shapes = f"{list(np.shape(got[name]))} in the step and {list(values[name].shape)} in the reference"
            cure = "return the same shape, or on N devices also [N, ...] (or give a Layout with your own fetch)"
            raise CheckError(f"{name} is {shapes}: {cure}", "FAILED")
        return copies


def blame(error: BaseException) -> str:
    """Return the line of your program in which an error arose, and its message: `file.py:12 in loss: TypeError: x`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not any(library in frame.filename for library in LIBRARIES)]
    where = f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}: " if own else ""
    return f"{where}{type(error).__name__}: {str(error).strip()}"
