"""Run the step on several devices, and compare an update with the reference's."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.layouts import Devices, Layout, place_arguments
from pmapdp.verify.reference import Reference, split_result
from pmapdp.verify.report import CheckError
from pmapdp.verify.tolerances import CLEARLY_WRONG, PREDICTS, ReferenceUpdate
from pmapdp.verify.trees import Leaves, distance, first_names

Copies = dict[str, list[np.ndarray]]  # what the devices hold of each leaf


class Step(NamedTuple):
    """The step that is verified, on N devices.

    Attributes:
        function: What `verify` was given.
        reference: What it's compared with.
        layout: How its arguments are placed.
        devices: Those on which it runs.
    """

    function: Callable
    reference: Reference
    layout: Layout
    devices: Devices

    def place(self, state: Any, batch: Any, key: Any) -> tuple:
        """Return the step's arguments on the devices, as copies.

        A step may donate what it's given.
        """
        state, batch, key = trees.to_host((state, batch, key))
        placed = place_arguments(
            state, batch, key, self.layout, self.reference.per_device, self.devices
        )
        return jax.block_until_ready(placed)

    def call(self, *placed: Any) -> dict[str, Any]:
        """Return the "state" and the "metrics" of the step, computed."""
        returned = jax.block_until_ready(self.function(*placed))
        return split_result(returned, self.reference.state, "the step")

    def read(self, returned: dict[str, Any], expected: Leaves) -> Copies:
        """Return the devices' copies of each leaf.

        Raises:
            CheckError: If names or shapes are not as expected.
        """
        if self.layout.fetch is not None:
            returned = returned | {"state": self.layout.fetch(returned["state"])}
        leaves = self.reference.leaves(returned)
        unmatched = sorted(set(leaves) ^ set(expected))
        if unmatched:
            who = "step" if unmatched[0] in leaves else "reference"
            raise CheckError(
                f"only the {who} returns {first_names(unmatched)}: return it from "
                "both, or from neither",
                "FAILED",
            )
        copies = {}
        for name, leaf in leaves.items():
            shape = expected[name].shape
            copies[name] = trees.device_copies(leaf, shape, len(self.devices))
            if not copies[name]:
                raise CheckError(
                    f"{name} is {list(np.shape(leaf))} in the step and {list(shape)} "
                    "in the reference: return one shape, or on N devices also [N, ...]",
                    "FAILED",
                )
        return copies


class StepUpdate:
    """One update by the step, from the state that the reference had.

    Attributes:
        step: The step on its devices.
        reference: What it's compared with.
        expected: The reference's update.
        N: The number of devices.
        copies: What the devices hold of each leaf of the result.
        errors: How far each compared leaf is off, on the device where it's farthest,
            and how far rounding allows.
        clearly_wrong: The leaves of the state that are off by much more than that, the
            farthest first.
        wrong_floats: The leaves of `clearly_wrong` that hold floats.
        wrong_arrays: The leaves of `wrong_floats` with more than one element.
    """

    def __init__(self, step: Step, expected: ReferenceUpdate):
        self.step = step
        self.reference = step.reference
        self.expected = expected
        self.N = len(step.devices)
        self.copies = self.run(expected)
        self.errors = {}
        for name in expected.compared:
            value = expected.values[name]
            error = max(distance(copy, value) for copy in self.copies[name])
            self.errors[name] = (error, expected.allowed[name])
        self.clearly_wrong = []
        self.wrong_floats = []
        self.wrong_arrays = []
        for name, (error, allowed) in self.wrong().items():
            if error <= CLEARLY_WRONG * allowed:
                continue
            self.clearly_wrong.append(name)
            if expected.kinds[name] == "close":
                self.wrong_floats.append(name)
                # A number alone is a multiple of any other.
                if expected.values[name].size > 1:
                    self.wrong_arrays.append(name)

    def run(self, update: ReferenceUpdate) -> Copies:
        """Run the step on the arguments of an update."""
        returned = self.step.call(*self.step.place(*update.arguments))
        return self.step.read(returned, update.values)

    def rerun(self, index: np.ndarray) -> tuple[Leaves, Leaves]:
        """Return what step and reference make of the examples at `index`.

        The step's result is its first device's.
        """
        batch = self.expected.select_examples(index)
        changed = self.expected._replace(batch=batch)
        copies = self.run(changed)
        of_first_device = {name: copies[name][0] for name in copies}
        return of_first_device, self.reference(changed.arguments)

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

    def is_predicted(self, name: str, predicted: Sequence[np.ndarray]) -> bool:
        """Return True if a wrong leaf is as predicted, for each device or for all."""
        copies = self.copies[name]
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
        copies = self.copies[name]
        error, allowed = self.errors[name]
        spread = max(distance(copy, copies[0]) for copy in copies)
        return spread > max(allowed, PREDICTS * min(error, 1e300))

    def fit_change(self, name: str) -> tuple[float, float]:
        """Return a leaf's change divided by the reference's, and how well that fits.

        The second number is the relative error.
        """
        old = self.expected.old[name]
        change = self.copies[name][0] - old
        return trees.fit_factor(change, self.expected.values[name] - old)

    @cached_property
    def local_results(self) -> list[Leaves]:
        """The reference's results on each device's own examples.

        They're what the devices would return without an all-reduce. There are none if
        the reference can't take so few examples.
        """
        update = self.expected
        b, rest = divmod(update.examples, self.N)
        if not b or rest:
            return []
        results = []
        for device in range(self.N):
            rows = update.select_examples(np.arange(device * b, (device + 1) * b))
            try:
                arguments = (update.state, rows, update.key)
                results.append(self.reference.on_device(device, arguments))
            except Exception:  # a reference may take only one batch size
                return []
        return results

    def local_values(self, name: str) -> list[np.ndarray]:
        """Return the local results of one leaf."""
        return [result[name] for result in self.local_results]

    @cached_property
    def reseeded(self) -> ReferenceUpdate:
        """The reference's update with other random numbers."""
        state, key = trees.reseed((self.expected.state, self.expected.key))
        values = self.reference((state, self.expected.batch, key))
        return self.expected._replace(state=state, key=key, values=values)

    @cached_property
    def random_leaves(self) -> dict[str, float]:
        """The leaves that depend on random numbers, and how far others move them."""
        return self.differences(self.expected.values, self.reseeded.values)

    def differences(self, first: Leaves, second: Leaves) -> dict[str, float]:
        """Return the leaves in which two results differ, and by how much."""
        differences = {}
        for name in self.expected.compared:
            difference = distance(first[name], second[name])
            is_exact = self.expected.kinds[name] == "exact"
            if not is_exact and difference > 4 * self.expected.allowed[name]:
                differences[name] = difference
        return differences

    @cached_property
    def compiled(self) -> Any:
        """The step as compiled.

        What pmap and jit return has been compiled by its call. A plain function around
        it is compiled as a whole.
        """
        function: Any = self.step.function
        if not hasattr(function, "lower"):
            function = jax.jit(function)
        arguments = self.step.place(*self.expected.arguments)
        return function.lower(*arguments).compile()
