"""How much each example counts: each is replaced in turn, and the moves of step and reference are compared."""

import numpy as np

from pmapdp.verify.case import Case
from pmapdp.verify.mistakes import Cause, named

EQUAL = 1e-2  # relative error of a weight
LINEAR = 2e-3  # relative error with which the moves of a leaf must be multiples: clipping bends them a little
MOST_EXAMPLES = 256  # one update of the step and one of the reference for each
SURE = 20  # times its tolerance: how far the reference must move a leaf to tell a weight


def unequal_examples(case: Case, names: list[str]) -> Cause | None:
    """Examples that are dropped, or count more than others, by leaves that are clearly wrong."""
    weights = example_weights(case, names)
    if weights is None or np.isnan(weights).all():
        return None
    dropped = np.abs(weights) < EQUAL
    if dropped.any():
        return None if dropped.all() or dropped.mean() > 0.9 else named("dropped", dropped=places(dropped))
    low, high = np.nanmin(weights), np.nanmax(weights)
    if low < 0 or high - low < 3 * EQUAL * high:
        return None
    light, heavy = (places(np.abs(weights - weight) < EQUAL * high) for weight in (low, high))
    return named("counted unequally", heavy=heavy, light=light, ratio=f"{high / low:.3g}")


def example_weights(case: Case, names: list[str]) -> np.ndarray | None:
    """`[B]`: how far the step moves when an example is replaced, as a multiple of the reference's move.

    They are read from the leaf whose moves are most nearly such multiples, where the update is linear in the gradient.
    Not-a-number for an example that is replaced by an equal one.
    """
    B = case.update.examples
    if not 2 <= B <= MOST_EXAMPLES:
        return None
    allowed, values = case.update.allowed["state"], case.update.values["state"]
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for example in range(B):
        index = np.arange(B)
        index[example] = (example + B // 2) % B
        got, wanted = case.rerun(index)
        for name, pairs in found.items():
            move = wanted[name] - values[name]
            enough = np.max(np.abs(move), initial=0) > SURE * allowed[name].tolerance
            pairs.append(multiple(got[name] - case.got["state"][name][0], move) if enough else (np.nan, np.nan))
    best, weights = LINEAR, None
    for each in map(np.array, found.values()):  # [B, 2]
        if np.isfinite(each[:, 0]).sum() > B // 2 and (error := float(np.nanmax(each[:, 1]))) < best:
            best, weights = error, each[:, 0]
    return weights


def multiple(got: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """The factor between two arrays, and the relative error with which it explains the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.vdot(wanted, got).real / np.vdot(wanted, wanted).real
        return float(factor), float(np.linalg.norm(got - factor * wanted) / np.linalg.norm(wanted))


def places(chosen: np.ndarray) -> str:
    """The places of the chosen examples in words: `3, 8 to 15`."""
    found = np.flatnonzero(chosen)
    runs = np.split(found, np.flatnonzero(np.diff(found) > 1) + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
