"""Find the cause of wrong metrics."""

from typing import Any

import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.examples import multiple
from pmapdp.verify.explain import padded_batch
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.search import CLEAR, REST, Search, attempt


def explain_metrics(case: Case, alike: bool, facts: str = "") -> Cause:
    """The cause of wrong metrics: that which explains most of them."""
    search, wrong = Search(case, alike), case.wrong("metrics")
    unnamed = "follows" if search.wrong else "unknown"
    possible = {name: causes_of(search, name, *wrong[name]) for name in wrong}
    count = {
        cause: sum(cause in found for found in possible.values()) for found in possible.values() for cause in found
    }
    cause = max(count, key=lambda cause: count[cause], default=unnamed)
    leaves = [name for name in wrong if cause in possible[name]]
    of_parts = cause in ("mean of means", "one device's metrics") and not any(apart(case, n, *wrong[n]) for n in leaves)
    if of_parts and count[cause] < len(wrong):
        cause = unnamed  # by chance, as an accuracy of few values is explained where the loss is not
        leaves = []
    leaves = leaves or list(wrong)
    rows = (search.found.get("padded") or (0, 0))[1]
    facts = f"{'It is wrong on one device, too. ' * alike}{times(case, leaves[0])}{facts}"
    name, _, ratio = cause.partition(": ")
    return named(name, leaves, ratio=ratio, N=case.trial.N, rows=rows, facts=facts)


def causes_of(search: Search, name: str, far: float, tolerance: float) -> list[str]:
    """The names of the causes that would explain one wrong metric; of a scaled one with its factor."""
    case, copies, right = search.case, search.case.got["metrics"][name], search.case.update.values["metrics"][name]
    if (search.wrong and not all(np.isfinite(copy).all() for copy in copies)) or far <= CLEAR * tolerance:
        return []
    if apart(case, name, far, tolerance):
        return ["one device's metrics"]
    guesses: list[tuple[str, Any]] = []
    if not search.alike:
        guesses += [(f"scaled metrics: {ratio:.3g}", right * ratio) for ratio in (search.N, 1 / search.N, search.N**2)]
        guesses.append(("one device's metrics", right / search.N))  # as a count of its examples
    if not search.alike and search.parts:
        parts = [
            np.nan_to_num(part["metrics"][name]) for part in search.parts
        ]  # of padding alone the reference has none
        guesses += [("mean of means", np.mean(parts, axis=0)), ("mean of means", np.sum(parts, axis=0))]
        guesses += [("one device's metrics", part) for part in parts]
    padded, rows = search.once("padded", lambda: padded_batch(case)) or (None, 0)
    if rows and (found := attempt(lambda: case.reference(batch=padded))):
        guesses.append(("padding counts", found["metrics"][name]))
    rests = [(trees.distance(copies[0], np.asarray(value)), cause) for cause, value in guesses]
    # Those within rounding; else the nearest, and no chance hit: of many parts some have losses near one another.
    within = [cause for rest, cause in rests if rest <= tolerance / 4]
    rest, cause = min(rests, default=(np.inf, ""), key=lambda pair: pair[0])
    return list(dict.fromkeys(within)) or [cause] * (rest <= REST / 5 * far)


def apart(case: Case, name: str, far: float, tolerance: float) -> bool:
    """Whether the devices hold different values of a wrong metric."""
    copies = case.got["metrics"][name]
    return max(trees.distance(copy, copies[0]) for copy in copies) > max(tolerance, REST * far)


def times(case: Case, name: str) -> str:
    """How many times the reference's value a metric is, where that is sure."""
    ratio, error = multiple(case.got["metrics"][name][0].ravel(), case.update.values["metrics"][name].ravel())
    return f"It is {ratio:.3g} times the reference's. " if error < 1e-2 * abs(ratio) else ""
