"""Run one update by a step on several devices, and compare it with the reference's.

An experiment predicts the step's result, and the prediction holds or not. Two
thresholds decide: what rounding allows (`ReferenceUpdate.allowed`, which is measured),
and how near a prediction must be (`PREDICTS`).
"""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.layouts import Devices, Layout
from pmapdp.verify.reference import (
    Reference,
    ReferenceUpdate,
    split_result,
    step_arguments,
)
from pmapdp.verify.report import CheckError
from pmapdp.verify.table import few
from pmapdp.verify.trees import Leaves, distance, multiple

# The largest error of a prediction, as a fraction of the difference that it explains. A
# prediction that holds misses by rounding, which is below a thousandth of an update,
# also in float32. One that doesn't hold misses by about the difference itself.
PREDICTS = 1e-3
# A difference is clear if it's this many times what rounding allows. A smaller one
# can't tell two predictions apart.
CLEAR = 10


class Comparison(NamedTuple):
    """A step on some devices, and the reference that it is compared with.

    Attributes:
        step: What's verified.
        reference: Computes what the step should return.
        layout: How the step's arguments are placed.
        devices: Those on which the step runs.
        state: What the training starts from.
        batches: One for each update.
        keys: One key for each update, in a tuple, or an empty one.
    """

    step: Callable
    reference: Reference
    layout: Layout
    devices: Devices
    state: Any
    batches: list[Any]
    keys: list[tuple[Any, ...]]


class Case:
    """One update by a step on N devices, from the state that the reference had.

    Attributes:
        got: The devices' copies of each leaf of the result.
        errors: How far each compared leaf is off, on the device where it's farthest,
            and how far rounding allows.
        clear: The wrong leaves of the state that are off by much more than that, the
            farthest first.
        fractions: Those of them that hold fractions.
    """

    def __init__(self, comparison: Comparison, update: ReferenceUpdate):
        self.comparison = comparison
        self.reference = comparison.reference
        self.update = update
        self.N = len(comparison.devices)
        self.got = self.read(self.call(*self.place(update)))
        self.errors = {}
        for name in update.compared:
            value = update.values[name]
            error = max(distance(copy, value) for copy in self.got[name])
            self.errors[name] = (error, update.allowed[name])
        self.clear = []
        for name, (error, allowed) in self.wrong().items():
            if error > CLEAR * allowed:
                self.clear.append(name)
        self.fractions = [
            name for name in self.clear if update.values[name].dtype.kind == "f"
        ]

    def place(self, update: ReferenceUpdate) -> tuple[Any, ...]:
        """Put state, batch and key on the devices, in memory that nobody else uses.

        A step may donate what it's given.
        """
        layout = self.comparison.layout
        devices = self.comparison.devices
        is_own = self.reference.is_own
        state, batch, *key = trees.to_host(update.arguments)

        def place_own(leaf: Any, shared: Any) -> Any:
            if shared is not None:
                return shared
            if np.shape(leaf)[:1] != (self.N,):
                raise CheckError(
                    f"a leaf that per_device names is {list(np.shape(leaf))}, which "
                    f"are not {self.N} rows"
                )
            return layout.place_own(leaf, devices)

        shared = trees.map_with_names(
            lambda path, leaf: None if is_own(path) else leaf, state
        )
        shared = layout.place_state(shared, devices)
        state = jax.tree.map(place_own, state, shared)
        if batch is not None:
            batch = layout.place_batch(batch, devices)
        place_key = layout.place_own if is_own("key") else layout.place_key
        key = [place_key(only_key, devices) for only_key in key]
        return jax.block_until_ready((state, batch, *key))

    def call(self, *placed: Any) -> dict[str, Any]:
        """Return the "state" and the "metrics" of the step, computed."""
        returned = self.comparison.step(*step_arguments(*placed))
        returned = jax.block_until_ready(returned)
        return split_result(returned, self.reference.form, "the step")

    def read(self, returned: dict[str, Any]) -> dict[str, list[np.ndarray]]:
        """Return the devices' copies of each leaf.

        Raises:
            CheckError: If names or shapes are not those of the reference.
        """
        fetch = self.comparison.layout.fetch
        if fetch is not None:
            returned = returned | {"state": fetch(returned["state"])}
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
        times_allowed = {}
        for name, (error, allowed) in self.errors.items():
            if error > allowed and self.reference.is_metric(name) == metrics:
                times_allowed[name] = error / (allowed or 1e-300)
        names = sorted(times_allowed, key=lambda name: -times_allowed[name])
        return {name: self.errors[name] for name in names}

    @cached_property
    def compiled(self) -> Any:
        """The step as compiled.

        What pmap and jit return has been compiled by its call. A plain function around
        it is compiled as a whole.
        """
        step: Any = self.comparison.step
        if not hasattr(step, "lower"):
            step = jax.jit(step)
        return step.lower(*step_arguments(*self.place(self.update))).compile()

    @cached_property
    def parts(self) -> list[Leaves]:
        """The reference's results on each device's own examples; empty if it can't."""
        update = self.update
        b, rest = divmod(update.examples, self.N)
        if not b or rest:
            return []
        parts = []
        for device in range(self.N):
            rows = update.rows(np.arange(device * b, (device + 1) * b))
            try:
                part = self.reference((update.state, rows, *update.key), device)
            except Exception:  # a reference may take only one batch size
                return []
            parts.append(part)
        return parts

    @cached_property
    def other_seed(self) -> ReferenceUpdate:
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
        distances = {}
        for name in self.update.compared:
            moved = distance(first[name], second[name])
            is_exact = self.update.kinds[name] == "exact"
            if not is_exact and moved > 4 * self.update.allowed[name]:
                distances[name] = moved
        return distances

    def rerun(self, index: Any) -> tuple[Leaves, Leaves]:
        """Return what step and reference make of the examples at `index`.

        The step's result is its first device's.
        """
        update = self.update._replace(batch=self.update.rows(index))
        copies = self.read(self.call(*self.place(update)))
        first = {name: of_devices[0] for name, of_devices in copies.items()}
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
        error, allowed = self.errors[name]
        if len(predicted) not in (1, len(copies)):
            return False
        rests = []
        for device, copy in enumerate(copies):
            rests.append(distance(copy, predicted[device % len(predicted)]))
        rest = max(rests)
        return rest <= max(PREDICTS * error, allowed) and rest < error / 4

    def differs_between_devices(self, name: str) -> bool:
        """Return True if the devices hold different values of a wrong leaf."""
        copies = self.got[name]
        error, allowed = self.errors[name]
        spread = max(distance(copy, copies[0]) for copy in copies)
        return spread > max(allowed, PREDICTS * min(error, 1e300))
