"""One update in which the step differs from its reference, and what it is compared with to find the cause."""

import dataclasses
import functools
import re
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.rounding import Expected
from pmapdp.verify.runs import Outcome, StepFailedError, Trial

# Leaves that are statistics of the batch rather than parameters, by a word of their path, as Flax names them.
STATISTICS = re.compile(r"stat|running|moving|(^|/|_)(mean|var|variance)(/|$)", re.IGNORECASE)


@dataclasses.dataclass
class Case:
    """One update of a trial."""

    trial: Trial
    state: Any  # before the update, on the host, as one device has it
    batch: Any
    key: Any
    like: tuple[Any, Any]  # state and metrics that the reference returns
    want_state: Expected  # the same by leaf, with tolerances
    want_metrics: Expected
    got: Outcome  # what the step returned
    positional: bool  # whether the reference depends on the order of the examples

    @functools.cached_property
    def old(self) -> dict[str, np.ndarray]:
        """The leaves of the state before the update."""
        return trees.values(self.state)

    @functools.cached_property
    def wrong_state(self) -> dict[str, float]:
        """The leaves of the state that are wrong on any device, and by how much."""
        return self.want_state.wrong(self.got.state)

    @property
    def wrong_parameters(self) -> list[str]:
        """The wrong leaves of the state that are not statistics of the batch."""
        return [name for name in self.wrong_state if not STATISTICS.search(name)]

    @functools.cached_property
    def wrong_metrics(self) -> dict[str, float]:
        """The same of the metrics."""
        return self.want_metrics.wrong(self.got.metrics)

    @functools.cached_property
    def parts(self) -> list[tuple[dict[str, np.ndarray], dict[str, np.ndarray]]]:
        """What the reference makes of each device's examples alone: state and metrics by leaf, device by device."""
        return [self.numbers_of(batch, self.key) for batch in trees.parts(self.batch, self.trial.N)]

    def mean_of_parts(self, name: str, of_metrics: bool = False) -> np.ndarray:
        """The mean over devices of what the reference makes of their examples, for one leaf."""
        return np.mean([part[of_metrics][name] for part in self.parts], axis=0)

    def numbers_of(self, batch: Any, key: Any) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """State and metrics of the reference, by leaf."""
        state, metrics = self.trial.run_reference(self.state, batch, key)
        return trees.values(state), trees.values(metrics)

    def rerun(self, batch: Any) -> tuple[Outcome, dict[str, np.ndarray]]:
        """The update on another batch: by the step, and the reference's new state by leaf."""
        like = self.trial.run_reference(self.state, batch, self.key)
        got = self.trial.run(self.state, batch, self.key, like)
        return got, trees.values(like[0])

    def close(self, name: str, got: np.ndarray, wanted: np.ndarray) -> bool:
        """Whether a leaf of the state is explained by a value. Explanations may round a little more than the step."""
        return bool(trees.distance(got, wanted) <= 4 * self.want_state.tolerance[name])

    def holds(self, name: str, value: np.ndarray) -> bool:
        """Whether a value explains what the first device holds of a leaf of the state."""
        return self.close(name, self.got.state[name][0], value)

    def replicas_differ(self, name: str) -> bool:
        """Whether the devices hold different values of a leaf of the state."""
        first, *others = self.got.state[name]
        return any(trees.distance(first, other) > self.want_state.tolerance[name] for other in others)

    @functools.cached_property
    def uses_key(self) -> bool:
        """Whether the reference's result depends on the key."""
        if self.key is None:
            return False
        other = self.numbers_of(self.batch, jax.random.fold_in(self.key, 7919))[0]
        return any(
            trees.distance(other[name], self.want_state.values[name]) > self.want_state.tolerance[name]
            for name in self.want_state.values
        )

    def is_right_with_equal_weights(self) -> bool:
        """Whether the difference vanishes when a leaf that looks like weights (`[B]`, or 0 and 1) is all ones."""
        leaves, structure = jax.tree.flatten(self.batch)
        for place, leaf in enumerate(leaves):
            flat = np.ndim(leaf) == 1 and not trees.is_key(leaf)
            if flat and (trees.is_float(leaf) or np.isin(np.unique(leaf), (0, 1)).all()):
                ones = jax.tree.unflatten(structure, [*leaves[:place], np.ones_like(leaf), *leaves[place + 1 :]])
                try:
                    got, wanted = self.rerun(ones)
                except StepFailedError:
                    continue
                if all(self.close(name, got.state[name][0], wanted[name]) for name in self.wrong_state):
                    return True
        return False
