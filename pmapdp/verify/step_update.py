"""Run one update by the step on several devices, and compare it with the reference."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.layouts import Devices, Layout
from pmapdp.verify.reference import Reference, split_result, step_arguments
from pmapdp.verify.report import CheckError
from pmapdp.verify.tolerances import CLEARLY_WRONG, PREDICTS, ReferenceUpdate
from pmapdp.verify.trees import Leaves, distance, first_names


class Program(NamedTuple):
    """A step on some devices, and the reference that it is compared with.

    Attributes:
        step: What's verified.
        reference: Computes what the step should return.
        layout: How the step's arguments are placed.
        devices: Those on which the step runs.
        state: What the training starts from.
        batches: One for each update.
        keys: One for each update.
    """

    step: Callable
    reference: Reference
    layout: Layout
    devices: Devices
    state: Any
    batches: list[Any]
    keys: list[Any]


class StepUpdate:
    """One update by a step on N devices, from the state that the reference had.

    Attributes:
        program: The step and its reference.
        expected: The reference's update.
        N: The number of devices.
        copies: The devices' copies of each leaf of the result.
        errors: How far each compared leaf is off, on the device where it's farthest,
            and how far rounding allows.
        clearly_wrong: The leaves of the state that are off by much more than that, the
            farthest first.
        wrong_floats: The leaves of `clearly_wrong` that hold floats.
        wrong_arrays: The leaves of `wrong_floats` with more than one element.
    """

    def __init__(self, program: Program, expected: ReferenceUpdate):
        self.program = program
        self.reference = program.reference
        self.expected = expected
        self.N = len(program.devices)
        self.copies = self.read(self.call(*self.place(expected)))
        self.errors = {}
        for name in expected.compared:
            value = expected.values[name]
            error = max(distance(copy, value) for copy in self.copies[name])
            self.errors[name] = (error, expected.allowed[name])
        self.clearly_wrong = []
        for name, (error, allowed) in self.wrong().items():
            if error > CLEARLY_WRONG * allowed:
                self.clearly_wrong.append(name)
        self.wrong_floats = [
            name
            for name in self.clearly_wrong
            if expected.values[name].dtype.kind == "f"
        ]
        # A number alone is a multiple of any other.
        self.wrong_arrays = [
            name for name in self.wrong_floats if expected.values[name].size > 1
        ]

    def place(self, update: ReferenceUpdate) -> tuple[Any, ...]:
        """Put state, batch and key on the devices, in memory that nobody else uses.

        A step may donate what it's given.
        """
        layout = self.program.layout
        devices = self.program.devices
        is_per_device = self.reference.is_per_device
        state, batch, key = trees.to_host(update.arguments)

        def leave_out(path: str, leaf: Any) -> Any:
            return None if is_per_device(path) else leaf

        def place_rest(leaf: Any, placed: Any) -> Any:
            if placed is not None:
                return placed
            if np.shape(leaf)[:1] != (self.N,):
                raise CheckError(
                    f"a leaf that per_device names is {list(np.shape(leaf))}, which "
                    f"are not {self.N} rows"
                )
            return layout.place_per_device(leaf, devices)

        placed = layout.place_state(trees.map_with_names(leave_out, state), devices)
        state = jax.tree.map(place_rest, state, placed)
        if batch is not None:
            batch = layout.place_batch(batch, devices)
        if key is not None and is_per_device("key"):
            key = layout.place_per_device(key, devices)
        elif key is not None:
            key = layout.place_key(key, devices)
        return jax.block_until_ready((state, batch, key))

    def call(self, *placed: Any) -> dict[str, Any]:
        """Return the "state" and the "metrics" of the step, computed."""
        returned = self.program.step(*step_arguments(*placed))
        returned = jax.block_until_ready(returned)
        return split_result(returned, self.reference.state, "the step")

    def read(self, returned: dict[str, Any]) -> dict[str, list[np.ndarray]]:
        """Return the devices' copies of each leaf.

        Raises:
            CheckError: If names or shapes are not the reference's.
        """
        fetch = self.program.layout.fetch
        if fetch is not None:
            returned = returned | {"state": fetch(returned["state"])}
        leaves = self.reference.leaves(returned)
        values = self.expected.values
        unmatched = sorted(set(leaves) ^ set(values))
        if unmatched:
            who = "step" if unmatched[0] in leaves else "reference"
            raise CheckError(
                f"only the {who} returns {first_names(unmatched)}: return it from "
                "both, or from neither",
                "FAILED",
            )
        copies = {}
        for name, leaf in leaves.items():
            shape = values[name].shape
            copies[name] = trees.device_copies(leaf, shape, self.N)
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

    def is_predicted(self, name: str, predicted: Sequence[Any]) -> bool:
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
        """Return how many times as far as in the reference a leaf changes.

        The second number is the relative error of that.
        """
        old = self.expected.old[name]
        change = self.copies[name][0] - old
        return trees.fit_factor(change, self.expected.values[name] - old)

    def rerun(self, index: Any) -> tuple[Leaves, Leaves]:
        """Return what step and reference make of the examples at `index`.

        The step's result is its first device's.
        """
        changed = self.expected._replace(batch=self.expected.select_examples(index))
        copies = self.read(self.call(*self.place(changed)))
        of_first_device = {name: leaves[0] for name, leaves in copies.items()}
        return of_first_device, self.reference(changed.arguments)

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
        step: Any = self.program.step
        if not hasattr(step, "lower"):
            step = jax.jit(step)
        return step.lower(*step_arguments(*self.place(self.expected))).compile()
