"""Run one update by a step on several devices, and compare it with the reference's.

An experiment predicts the step's result, and the prediction holds or not. Two
thresholds decide: what rounding allows (`Update.allowed`, which is measured), and how
near a prediction must be (`PREDICTS`).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.layouts import Devices, Layout
from pmapdp.verify.reference import Reference, Update, split_result, step_arguments
from pmapdp.verify.report import CheckError
from pmapdp.verify.table import few
from pmapdp.verify.trees import Leaves, distance, multiple

# Of the difference that is explained. A prediction that holds misses by rounding, which
# is below a thousandth of an update also in float32; one that doesn't hold misses by
# about the difference itself.
PREDICTS = 1e-3
# Times what rounding allows: a smaller difference can't tell two predictions apart.
CLEAR = 10


class Case:
    """One update by a step on N devices, from the state that the reference had.

    Attributes:
        got: the devices' copies of each leaf of the result.
        off: how far each compared leaf is off, on the device where it's farthest, and
            how far rounding allows.
        clear: the wrong leaves of the state that are off by much more than that, the
            farthest first.
        fractions: those of them that hold fractions.
    """

    def __init__(
        self,
        step: Callable,
        reference: Reference,
        layout: Layout,
        devices: Devices,
        update: Update,
    ):
        self.step = step
        self.reference = reference
        self.layout = layout
        self.devices = devices
        self.update = update
        self.N = len(devices)
        self.got = self.read(self.call(*self.place(update)))
        self.off = {}
        for name, kind in update.kinds.items():
            if kind in ("close", "exact"):
                far = max(
                    distance(copy, update.values[name]) for copy in self.got[name]
                )
                self.off[name] = (far, update.allowed[name])
        self.clear = []
        for name, (far, allowed) in self.wrong().items():
            if far > CLEAR * allowed:
                self.clear.append(name)
        self.fractions = [
            name for name in self.clear if update.values[name].dtype.kind == "f"
        ]

    def place(self, update: Update) -> tuple[Any, ...]:
        """Put state, batch and key on the devices, in memory that nobody else uses.

        A step may donate what it's given.
        """
        state, batch, *key = trees.to_host(update.arguments)
        is_own = self.reference.is_own
        own = trees.map_with_names(
            lambda path, leaf: leaf if is_own(path) else None, state
        )
        for leaf in jax.tree.leaves(own):
            if np.shape(leaf)[:1] != (self.N,):
                raise CheckError(
                    f"a leaf that per_device names is {list(np.shape(leaf))}, which "
                    f"are not {self.N} rows"
                )
        shared = trees.map_with_names(
            lambda path, leaf: None if is_own(path) else leaf, state
        )
        shared = self.layout.place_state(shared, self.devices)
        own = self.layout.place_own(own, self.devices)
        state = jax.tree.map(
            lambda mine, everyones: everyones if mine is None else mine,
            own,
            shared,
            is_leaf=lambda leaf: leaf is None,
        )
        if batch is not None:
            batch = self.layout.place_batch(batch, self.devices)
        place_key = self.layout.place_own if is_own("key") else self.layout.place_key
        key = [place_key(each, self.devices) for each in key]
        return jax.block_until_ready((state, batch, *key))

    def call(self, *placed: Any) -> dict[str, Any]:
        """Return the "state" and the "metrics" of the step, computed."""
        returned = jax.block_until_ready(self.step(*step_arguments(*placed)))
        return split_result(returned, self.reference.form, "the step")

    def read(self, returned: dict[str, Any]) -> dict[str, list[np.ndarray]]:
        """Return the devices' copies of each leaf.

        Raises:
            CheckError: if names or shapes are not those of the reference.
        """
        if self.layout.fetch is not None:
            returned = returned | {"state": self.layout.fetch(returned["state"])}
        got = self.reference.leaves(returned)
        values = self.update.values
        odd = sorted(set(got) ^ set(values))
        if odd:
            who = "step" if odd[0] in got else "reference"
            raise CheckError(
                f"only the {who} returns {few(odd)}: return it from both, or from "
                "neither",
                "FAILED",
            )
        copies = {}
        for name, leaf in got.items():
            shape = values[name].shape
            copies[name] = trees.copies(leaf, shape, self.N)
            if not copies[name]:
                raise CheckError(
                    f"{name} is {list(np.shape(leaf))} in the step and {list(shape)} "
                    "in the reference: return one shape, or on N devices also [N, ...]",
                    "FAILED",
                )
        return copies

    def wrong(self, metrics: bool = False) -> dict[str, tuple[float, float]]:
        """Return the leaves of the state, or of the metrics, that are off.

        The farthest comes first, measured by what rounding allows.
        """
        found = {}
        for name, off in self.off.items():
            far, allowed = off
            if far > allowed and self.reference.is_metric(name) == metrics:
                found[name] = off
        times = {
            name: far / (allowed or 1e-300) for name, (far, allowed) in found.items()
        }
        farthest = sorted(found, key=lambda name: -times[name])
        return {name: found[name] for name in farthest}

    @cached_property
    def traced(self) -> Any:
        """The step as JAX traces it."""
        return jax.jit(self.step).trace(*step_arguments(*self.place(self.update)))

    @cached_property
    def compiled(self) -> Any:
        """The step as compiled, also one that a plain function is around."""
        return self.traced.lower().compile()

    @cached_property
    def parts(self) -> list[Leaves]:
        """The reference's results on each device's own examples; empty if it can't."""
        update = self.update
        b, rest = divmod(update.examples, self.N)
        if not b or rest:
            return []
        found = []
        for device in range(self.N):
            rows = update.rows(slice(device * b, (device + 1) * b))
            try:
                part = self.reference((update.state, rows, *update.key), device)
            except Exception:  # a reference may take only one batch size
                return []
            found.append(part)
        return found

    @cached_property
    def other_seed(self) -> Update:
        """The update with other random numbers."""
        state, key = trees.reseed((self.update.state, self.update.key))
        values = self.reference((state, self.update.batch, *key))
        return self.update._replace(state=state, key=key, values=values)

    @cached_property
    def random_leaves(self) -> dict[str, float]:
        """The distance that each leaf moves with other random numbers, if it does."""
        return self.distances(self.update.values, self.other_seed.values)

    def distances(self, first: Leaves, second: Leaves) -> dict[str, float]:
        """Return the leaves in which two results differ, and by how much."""
        found = {}
        for name, kind in self.update.kinds.items():
            far = distance(first[name], second[name])
            if kind == "close" and far > 4 * self.update.allowed[name]:
                found[name] = far
        return found

    def rerun(self, index: Any) -> tuple[Leaves, Leaves]:
        """Return what step and reference make of the examples at `index`.

        The step's result is its first device's.
        """
        update = self.update._replace(batch=self.update.rows(index))
        copies = self.read(self.call(*self.place(update)))
        first = {name: each[0] for name, each in copies.items()}
        return first, self.reference(update.arguments)

    def change(self, name: str) -> tuple[float, float]:
        """Return how many times as far as in the reference a leaf changes.

        The second number is the relative error of that.
        """
        old = self.update.old[name]
        return multiple(self.got[name][0] - old, self.update.values[name] - old)

    def is_near(self, name: str, predicted: Sequence[Any]) -> bool:
        """Return True if a wrong leaf is as predicted, for each device or for all."""
        copies = self.got[name]
        far, allowed = self.off[name]
        if len(predicted) == 1:
            predicted = [predicted[0]] * len(copies)
        if len(predicted) != len(copies):
            return False
        pairs = zip(copies, predicted, strict=True)
        rest = max(distance(copy, value) for copy, value in pairs)
        return rest <= max(PREDICTS * far, allowed) and rest < far / 4

    def differs_between_devices(self, name: str) -> bool:
        """Return True if the devices hold different values of a wrong leaf."""
        copies = self.got[name]
        far, allowed = self.off[name]
        apart = max(distance(copy, copies[0]) for copy in copies)
        return apart > max(allowed, PREDICTS * min(far, 1e300))

    def find_nan(self) -> Iterator[tuple[str, list[int]]]:
        """Yield the leaves that hold NaN, and on which devices."""
        for name, copies in self.got.items():
            devices = [n for n, copy in enumerate(copies) if has_nan(copy)]
            if devices and name in self.off:
                yield name, devices


def has_nan(array: np.ndarray) -> bool:
    """Return True if an array holds NaN."""
    return array.dtype.kind == "f" and bool(np.isnan(array).any())
