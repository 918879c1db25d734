"""Run the step on several devices, and compare an update with the reference's."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.layouts import Devices, Layout, place_arguments
from pmapdp.verify.reference import Reference, split_result
from pmapdp.verify.report import CheckError
from pmapdp.verify.thresholds import (
    CLEARLY_WRONG_FACTOR,
    MAX_RESIDUAL,
    PREDICTION_TOLERANCE,
)
from pmapdp.verify.tolerances import ReferenceLeaf, ReferenceUpdate
from pmapdp.verify.trees import Leaves, distance, first_names, fit_factor

Output = Literal["state", "metrics"]  # the two outputs of a step
Copies = dict[str, list[np.ndarray]]  # the devices' copies of each leaf
SMALLEST_TOLERANCE = 1e-300  # stands for 0, by which nothing can be divided


class Step(NamedTuple):
    """The step that is verified, on N devices.

    Attributes:
        function: The step itself, as `verify` got it.
        reference: The reference with which it's compared.
        layout: The layout of its arguments.
        devices: The devices on which it runs.
    """

    function: Callable
    reference: Reference
    layout: Layout
    devices: Devices

    def place(self, state: Any, batch: Any, key: Any) -> tuple:
        """Place copies of the arguments on the devices, because the step may donate."""
        state, batch, key = trees.to_host((state, batch, key))
        placed = place_arguments(
            state, batch, key, self.layout, self.reference.per_device, self.devices
        )
        return jax.block_until_ready(placed)

    def call(self, *placed: Any) -> dict[str, Any]:
        """Call the step, wait for it, and return its "state" and its "metrics"."""
        returned = jax.block_until_ready(self.function(*placed))
        return split_result(returned, self.reference.state, "the step")

    def read(
        self, returned: dict[str, Any], expected: dict[str, ReferenceLeaf]
    ) -> Copies:
        """Return the devices' copies of each leaf.

        Raises:
            CheckError: Names or shapes differ from the reference's.
        """
        if self.layout.fetch is not None:
            returned = returned | {"state": self.layout.fetch(returned["state"])}
        leaves = self.reference.leaves(returned)
        unmatched = sorted(set(leaves) ^ set(expected))
        if unmatched:
            who = "reference"
            if unmatched[0] in leaves:
                who = "step"
            raise CheckError(
                f"only the {who} returns {first_names(unmatched)}: return it from "
                "both, or from neither",
                "FAILED",
            )
        copies = {}
        for name, leaf in leaves.items():
            shape = expected[name].value.shape
            copies[name] = trees.device_copies(leaf, shape, len(self.devices))
            if not copies[name]:
                raise CheckError(
                    f"{name} is {list(np.shape(leaf))} in the step and {list(shape)} "
                    "in the reference: return one shape, or on N devices also [N, ...]",
                    "FAILED",
                )
        return copies


class ComparedLeaf:
    """A leaf of the step's result beside the reference's.

    Attributes:
        name: Its path.
        expected: The reference's leaf.
        copies: The devices' copies, fewer than N if it's sharded.
        error: The largest difference from the reference's value on any device.
        is_wrong: The error is larger than rounding allows.
        is_clearly_wrong: The error is much larger than rounding allows.
        is_array: It holds several floats. Only then does a factor mean anything,
            because a single number is a multiple of any other.
    """

    def __init__(self, expected: ReferenceLeaf, copies: list[np.ndarray]):
        self.name = expected.name
        self.expected = expected
        self.copies = copies
        self.error = max(distance(copy, expected.value) for copy in copies)
        self.is_wrong = self.error > expected.allowed
        self.is_clearly_wrong = self.error > CLEARLY_WRONG_FACTOR * expected.allowed
        self.is_array = expected.kind == "close" and expected.value.size > 1

    def differs_between_devices(self) -> bool:
        """Return True if the devices hold different values of this wrong leaf."""
        spread = max(distance(copy, self.copies[0]) for copy in self.copies)
        # Spread and error are both infinite if some devices hold NaN.
        is_negligible = spread < PREDICTION_TOLERANCE * self.error
        return spread > self.expected.allowed and not is_negligible

    def is_predicted(self, predicted: Sequence[np.ndarray]) -> bool:
        """Return True if the copies are as predicted.

        Args:
            predicted: One array for all devices, or an array for each of them.
        """
        if len(predicted) == 1:
            predicted = [predicted[0] for _ in self.copies]
        if len(predicted) != len(self.copies):
            return False
        pairs = zip(self.copies, predicted, strict=True)
        return self.is_explained(max(distance(copy, array) for copy, array in pairs))

    def is_explained(self, residual: float) -> bool:
        """Return True if a prediction explains the error, up to this residual."""
        # The error may be small, or both may be infinite.
        if not residual < MAX_RESIDUAL * self.error:
            return False
        return residual <= max(PREDICTION_TOLERANCE * self.error, self.expected.allowed)

    def fit_change(self) -> tuple[float, float]:
        """Return the leaf's change as a multiple of the reference's, and its error.

        The error is relative to the reference's change.
        """
        old = self.expected.old
        return fit_factor(self.copies[0] - old, self.expected.value - old)


class StepUpdate:
    """One update by the step, from the same state as the reference's update.

    Attributes:
        step: The step on its devices.
        reference: The reference with which it's compared.
        expected: The reference's update.
        N: The number of devices.
        leaves: The leaves that are compared, by path.
    """

    def __init__(self, step: Step, expected: ReferenceUpdate):
        self.step = step
        self.reference = step.reference
        self.expected = expected
        self.N = len(step.devices)
        self.leaves = {}
        copies = self.run(expected)
        for name, leaf in expected.leaves.items():
            if leaf.is_compared:
                self.leaves[name] = ComparedLeaf(leaf, copies[name])

    def run(self, update: ReferenceUpdate) -> Copies:
        """Run the step on the arguments of an update, and read its result."""
        returned = self.step.call(*self.step.place(*update.arguments))
        return self.step.read(returned, update.leaves)

    def rerun(self, index: np.ndarray) -> tuple[Leaves, Leaves]:
        """Run step and reference on the examples at `index`.

        Returns:
            The leaves of the step on its first device, and of the reference.
        """
        batch = self.expected.select_examples(index)
        changed = self.expected._replace(batch=batch)
        copies = self.run(changed)
        first_copies = {name: copies[name][0] for name in copies}
        return first_copies, self.reference(changed.arguments)

    def leaves_of(self, output: Output) -> list[ComparedLeaf]:
        """Return the compared leaves of the state, or of the metrics."""
        are_metrics = output == "metrics"
        leaves = self.leaves.values()
        return [leaf for leaf in leaves if leaf.expected.is_metric == are_metrics]

    def wrong_leaves(self, output: Output) -> list[ComparedLeaf]:
        """Return the wrong leaves of the state, or of the metrics.

        The first is off by most, measured by what rounding allows.
        """
        wrong = [leaf for leaf in self.leaves_of(output) if leaf.is_wrong]
        return sorted(
            wrong,
            key=lambda leaf: leaf.error / (leaf.expected.allowed or SMALLEST_TOLERANCE),
            reverse=True,
        )

    def is_wrong(self) -> bool:
        """Return True if any leaf is wrong."""
        return any(leaf.is_wrong for leaf in self.leaves.values())

    def wrong_arrays(self) -> list[ComparedLeaf]:
        """Return the arrays of floats in the state that are clearly wrong."""
        return [
            leaf
            for leaf in self.wrong_leaves("state")
            if leaf.is_clearly_wrong and leaf.is_array
        ]

    @cached_property
    def local_results(self) -> list[Leaves]:
        """The reference's results on each device's own examples.

        The devices would return them without an all-reduce. The list is empty if the
        examples don't divide over the devices, or if the reference can't take so few.
        """
        update = self.expected
        b, remainder = divmod(update.examples, self.N)
        if not b or remainder:
            return []
        results = []
        for device in range(self.N):
            rows = update.select_examples(np.arange(device * b, (device + 1) * b))
            try:
                result = self.reference.jit_device(
                    device, update.state, rows, update.key
                )
            except Exception:  # a reference may take only one batch size
                return []
            results.append(self.reference.to_numpy(result))
        return results

    def local_values(self, leaf: ComparedLeaf) -> list[np.ndarray]:
        """Return one leaf of each local result."""
        return [result[leaf.name] for result in self.local_results]

    @cached_property
    def reseeded(self) -> ReferenceUpdate:
        """The reference's update with other random numbers."""
        state, key = trees.reseed((self.expected.state, self.expected.key))
        values = self.reference((state, self.expected.batch, key))
        leaves = {}
        for name, leaf in self.expected.leaves.items():
            leaves[name] = dataclasses.replace(leaf, value=values[name])
        return self.expected._replace(state=state, key=key, leaves=leaves)

    @cached_property
    def random_leaves(self) -> dict[str, float]:
        """The leaves that random numbers move, and how far."""
        return self.find_differences(self.expected.values, self.reseeded.values)

    def find_differences(self, first: Leaves, second: Leaves) -> dict[str, float]:
        """Return the leaves in which two results differ, and by how much."""
        differences = {}
        for name, leaf in self.leaves.items():
            difference = distance(first[name], second[name])
            is_float = leaf.expected.kind == "close"
            if is_float and difference > CLEARLY_WRONG_FACTOR * leaf.expected.allowed:
                differences[name] = difference
        return differences

    @cached_property
    def jaxpr(self) -> Any:
        """The step as JAX traces it."""
        arguments = self.step.place(*self.expected.arguments)
        return jax.make_jaxpr(self.step.function)(*arguments).jaxpr

    @cached_property
    def compiled(self) -> Any:
        """The step as the compiler made it.

        A plain function around a pmapped or jitted step is compiled as a whole.
        """
        function: Any = self.step.function
        if not hasattr(function, "lower"):
            function = jax.jit(function)
        arguments = self.step.place(*self.expected.arguments)
        return function.lower(*arguments).compile()
