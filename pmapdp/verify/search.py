"""What the search for a cause asks of an update: what each device would do alone, and what a prediction explains."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import Case, excess
from pmapdp.verify.cuts import Cut, Gradient
from pmapdp.verify.examples import multiple
from pmapdp.verify.mistakes import Cause
from pmapdp.verify.trees import Leaves

CLEAR = 10  # times its tolerance: how far a leaf must be off to show a cause
REST = 0.05  # of the difference: how much a cause may leave unexplained

Prediction = dict[str, Any]  # by leaf: a value, or one for each device in a list
Found = tuple[Cause, float | None] | None  # a cause, and how much of the difference it explains


def attempt(compute: Callable[[], Any]) -> Any:
    """What `compute` returns, or None where the user's functions or the traced program do not take the arguments."""
    try:
        return compute()
    except Exception:
        return None


class Search:
    """The search for the cause of one wrong update: what is asked more than once is computed once."""

    def __init__(self, case: Case, alike: bool):
        self.case, self.N, self.alike = case, case.trial.N, alike
        self.wrong = case.wrong("state")
        self.clear = [name for name, pair in self.wrong.items() if excess(*pair) > CLEAR]
        self.slack = bool(self.clear)  # whether rounding may be what a cause leaves unexplained
        self.clear = self.clear or list(self.wrong)
        self.gradient: Gradient | None = attempt(lambda: Gradient(case.trial.reference, case.update))
        self.found: dict[str, Any] = {}
        self.old = trees.values(case.update.state)
        # Of these it can be seen by which multiple they move: one number is a multiple of any other.
        self.several = [
            n for n in self.clear if n in self.old and self.old[n].dtype.kind in "fc" and self.old[n].size > 1
        ]

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """What `compute` returns, computed at the first call; None where it fails."""
        if name not in self.found:
            self.found[name] = attempt(compute)
        return self.found[name]

    @property
    def parts(self) -> list[dict[str, Leaves]] | None:
        """What the reference makes of each device's examples alone; None where it takes only the whole batch."""

        def compute() -> list[dict[str, Leaves]]:
            batches = trees.parts(self.case.update.batch, self.N, self.case.update.axis)
            return [self.case.reference(batch=part) for part in batches]

        unknown = self.case.update.examples < self.N or self.case.trial.reference.whole
        return None if unknown else self.once("parts", compute)

    @property
    def at_parts(self) -> list[list[list[np.ndarray]]] | None:
        """The values at the cuts of each device's examples alone."""

        def compute() -> Any:
            batches = trees.parts(self.case.update.batch, self.N, self.case.update.axis)
            return [self.gradient.at(part) for part in batches] if self.gradient and self.parts else None

        return self.once("at parts", compute)

    @property
    def at_whole(self) -> list[list[np.ndarray]] | None:
        """The values at the cuts of the whole batch."""
        return self.once("at whole", lambda: self.gradient.at(self.case.update.batch) if self.gradient else None)

    @property
    def trained(self) -> set[str]:
        """The leaves of the state that take part in the training; all of them where that is not known."""
        names = list(trees.named(self.case.update.state))

        def compute() -> set[str] | None:
            return self.gradient.trained(names) if self.gradient and self.gradient.cuts else None

        found = self.once("trained", compute)
        return set(names) if found is None else found

    def behind(self, cut: Cut) -> dict[str, set[int]]:
        """For each leaf of the new state, from which values of a cut it is computed: their places."""
        assert self.gradient
        return self.gradient.behind(cut, list(trees.named(self.case.update.state)))

    @property
    def statistics(self) -> set[str]:
        """The leaves that take no part in the training and are no averages of the parameters, which are computed from
        all that a parameter is."""
        names = set(trees.named(self.case.update.state)) - self.trained
        if not self.gradient or not self.gradient.cuts:
            return names
        last = self.gradient.cuts[0]
        behind = self.behind(last)
        trained = [arrays for name in self.trained if (arrays := {each for each in behind[name] if last.arrays[each]})]
        return {name for name in names if not any(arrays <= behind[name] for arrays in trained)}

    def moves(self, name: str) -> tuple[float, float]:
        """How many times as far as in the reference a leaf moves on the first device, and the error of that."""
        got, wanted, old = self.case.got["state"][name][0], self.case.update.values["state"][name], self.old[name]
        return multiple(got - old, wanted - old)

    def explains(self, predicted: Prediction, names: Iterable[str] | None = None, fitted: bool = False) -> float | None:
        """The least part of the difference of a clearly wrong leaf that a prediction explains; None where it fails.

        Args:
            predicted: by leaf, at least those of `names`.
            names: the leaves that the cause is about; None: all, and the right ones must be predicted right.
            fitted: whether the prediction was fitted to a leaf, so that it must come nearer.
        """
        chosen = [name for name in self.wrong if names is None or name in set(names)]
        clear = [name for name in chosen if name in self.clear]
        if not clear or not set(chosen) <= set(predicted):
            return None
        least = 1.0
        for name in chosen:
            far, tolerance = self.wrong[name]
            copies = self.case.got["state"][name]
            values = predicted[name] if isinstance(predicted[name], list) else [predicted[name]] * len(copies)
            rest = max(trees.distance(copy, value) for copy, value in zip(copies, values, strict=False))
            may_rest = max(tolerance * self.slack, REST * far) if np.isfinite(far) else tolerance
            if not rest <= (may_rest / 4 if fitted else may_rest):
                return None
            if name in clear:
                least = min(least, 1 - rest / far)
        if names is None:
            reference = self.case.update.values["state"]
            for name, most in self.case.update.allowed["state"].items():
                if name not in self.wrong and most.kind in ("close", "loose"):
                    value = predicted[name][0] if isinstance(predicted[name], list) else predicted[name]
                    if trees.distance(value, reference[name]) > CLEAR * most.tolerance:
                        return None
        return least

    def through(self, cut: Cut, values: list[np.ndarray]) -> Prediction:
        """The new state of the reference where the gradient at a cut has these values."""
        assert self.gradient
        return trees.values(self.gradient.state(cut, values))
