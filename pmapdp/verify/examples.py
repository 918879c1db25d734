"""How much each example counts: replace one after the other, and compare how far step and reference move."""

import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.sentences import Cause, named, ranges

MOST_EXAMPLES = 256  # one update of the step and one of the reference for each
CLEAR = 1e-2  # relative error with which a ratio must explain the change


def unequal_examples(case: Case) -> Cause | None:
    """Examples that are dropped, or count more than others."""
    B = trees.number_of_examples(case.batch)
    if not 2 <= B <= MOST_EXAMPLES:
        return None
    weights = example_weights(case, B)
    if weights is None:
        return None
    dropped = [int(i) for i in np.flatnonzero(np.abs(weights) < CLEAR)]
    kept = np.delete(weights, dropped)
    usual = np.median(kept[np.isfinite(kept)]) if np.isfinite(kept).any() else np.nan
    relative = weights / usual
    twice = [int(i) for i in np.flatnonzero(relative > 1.5)]
    even = np.abs(relative[twice] - np.round(relative[twice])) < CLEAR
    if dropped:
        return named("dropped", [], dropped=ranges(dropped))
    spread = np.nanmax(np.abs(np.delete(relative, twice) - 1), initial=0)
    if twice and even.all() and spread < CLEAR:
        return named("counted twice", [], twice=ranges(twice), times=round(float(relative[twice[0]])))
    if np.nanmax(np.abs(relative - 1)) < CLEAR:
        return None
    lightest, heaviest = int(np.nanargmin(relative)), int(np.nanargmax(relative))
    low, high = (f"{relative[i]:.3g}" for i in (lightest, heaviest))
    return named("place decides", [], low=low, high=high, lightest=lightest, heaviest=heaviest)


def example_weights(case: Case, B: int) -> np.ndarray | None:
    """`[B]`: how far the step moves when an example is replaced, as a multiple of the reference's move.

    They are read from the leaf whose moves are most nearly such multiples, where the update is linear in the gradient.
    Not-a-number for an example that is replaced by an equal one.
    """
    moves: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {name: [] for name in case.want_state.values}
    for i in range(B):
        index = np.arange(B)
        index[i] = (i + B // 2) % B
        got, wanted = case.rerun(trees.rows(case.batch, index))
        for name, value in case.want_state.values.items():
            moves[name].append((got.state[name][0] - case.got.state[name][0], wanted[name] - value))
    best: tuple[float, np.ndarray] | None = None
    for name, pairs in moves.items():
        lengths = np.array([np.linalg.norm(wanted) for _, wanted in pairs])
        with np.errstate(divide="ignore", invalid="ignore"):
            weights = np.array([np.vdot(wanted, got).real for got, wanted in pairs]) / lengths**2
            errors = [np.linalg.norm(got - w * wanted) for (got, wanted), w in zip(pairs, weights, strict=True)]
            weights = np.where(lengths > case.want_state.tolerance[name], weights, np.nan)
            error = float(np.nanmedian(errors / lengths)) if np.isfinite(weights).sum() > B // 2 else np.inf
        if error < CLEAR and (best is None or error < best[0]):
            best = error, weights
    return None if best is None else best[1]
