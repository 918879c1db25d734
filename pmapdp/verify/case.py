"""One update in which the step differs from its reference, and what it is compared with to find the cause."""

import dataclasses
import functools
from typing import Any

import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.rounding import Expected, Update, call_reference
from pmapdp.verify.runs import Outcome, Trial, wrong

Leaves = dict[str, np.ndarray]


@dataclasses.dataclass
class Case:
    """One update of a trial."""

    trial: Trial
    update: Update
    got: Outcome  # what the step returned

    @property
    def want(self) -> Expected:
        """The state that the step must return."""
        return self.update.want["state"]

    @functools.cached_property
    def wrong(self) -> list[str]:
        """The leaves of the state that are wrong on any device."""
        return list(wrong(self.want.differences(self.got["state"])))

    def reference(self, *arguments: Any) -> dict[str, Leaves]:
        """What the reference makes of other arguments: state and metrics by leaf."""
        new = call_reference(self.trial.reference, arguments)
        return {part: trees.values(tree) for part, tree in new.items()}

    @functools.cached_property
    def parts(self) -> list[dict[str, Leaves]]:
        """What the reference makes of each device's examples alone, device by device."""
        state, batch, *key = self.update.arguments
        return [self.reference(state, part, *key) for part in trees.parts(batch, self.trial.N)]

    def mean_of_parts(self, name: str, of: str = "state") -> np.ndarray:
        """The mean over devices of what the reference makes of their examples, for one leaf."""
        return np.mean([part[of][name] for part in self.parts], axis=0)

    def rerun(self, index: Any) -> tuple[Leaves, Leaves]:
        """The update on the examples at `index` of the batch: the new state of step (first device) and reference."""
        state, batch, *key = self.update.arguments
        arguments = (state, trees.rows(batch, index), *key)
        new = call_reference(self.trial.reference, arguments)
        got = self.trial.run(self.update._replace(arguments=arguments, new=new))["state"]
        return {name: copies[0] for name, copies in got.items()}, trees.values(new["state"])

    def close(self, name: str, got: np.ndarray, wanted: np.ndarray) -> bool:
        """Whether a leaf of the state is explained by a value. Explanations may round a little more than the step."""
        return trees.distance(got, wanted) <= 4 * self.want.tolerance[name]

    def holds(self, name: str, value: np.ndarray) -> bool:
        """Whether a value explains what the first device holds of a leaf of the state."""
        return self.close(name, self.got["state"][name][0], value)

    def reference_changes(self, *arguments: Any) -> bool:
        """Whether the reference returns another state for other arguments."""
        other = self.reference(*arguments)["state"]
        return any(not self.close(name, other[name], value) for name, value in self.want.values.items())

    @functools.cached_property
    def draws(self) -> bool:
        """Whether the reference's state depends on random numbers."""
        state, batch, *key = self.update.arguments
        state, *key = trees.reseed((state, *key))
        return self.reference_changes(state, batch, *key)

    @functools.cached_property
    def shuffled(self) -> np.ndarray:
        """Places of the batch's examples in another order."""
        return np.random.default_rng(1).permutation(trees.number_of_examples(self.update.arguments[1]))

    @functools.cached_property
    def positional(self) -> bool:
        """Whether the reference depends on the order of its examples, as when it draws one mask for the batch."""
        state, batch, *key = self.update.arguments
        return self.reference_changes(state, trees.rows(batch, self.shuffled), *key)
