"""Mistakes of size: sums for means, the learning rate, weight decay, and how much each example counts."""

import contextlib

import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.rounding import program_text

CLEAR = 1e-3  # relative error with which a multiple must explain a difference
EQUAL = 1e-2  # the same for the weights of examples
MOST_EXAMPLES = 256  # one update of the step and one of the reference for each


def multiple(got: np.ndarray, wanted: np.ndarray) -> tuple[float, float]:
    """The factor between two arrays, and the relative error with which it explains the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.vdot(wanted, got).real / np.vdot(wanted, wanted).real
        return factor, float(np.linalg.norm(got - factor * wanted) / np.linalg.norm(wanted))


def moves(case: Case, index: np.ndarray) -> dict[str, tuple[float, float]]:
    """How far the step moves when its batch becomes the examples at `index`, by leaf as a `multiple` of the reference's
    move. Leaves that the reference does not move are left out."""
    got, wanted = case.rerun(index)
    found = {}
    for name, tolerance in case.update.tolerance["state"].items():
        move = wanted[name] - case.update.values["state"][name]
        if np.linalg.norm(move) > tolerance:
            found[name] = multiple(got[name] - case.got["state"][name][0], move)
    return found


def scale(case: Case) -> Cause | None:
    """Leaves that move by a multiple. Two batches are compared, so that a weight decay does not count."""
    N, ratios = case.trial.N, {}
    for name, (ratio, error) in moves(case, np.arange(case.update.examples) // 2).items():
        if name in case.wrong() and error < CLEAR * abs(ratio) and abs(ratio - 1) > CLEAR:
            ratios[name] = ratio
    # Under Adam the moments have the factor N, and some leaves others.
    for cause, factor in (("sum for mean", N), ("averaged twice", 1 / N)):
        if leaves := [name for name, ratio in ratios.items() if abs(ratio / factor - 1) < CLEAR]:
            with contextlib.suppress(Exception):  # a step that cannot be traced
                if factor > 1 and "check_vma=True" in program_text(case.trial.step, case.trial.place(case.update)):
                    cause = "check_vma"
            return named(cause, leaves, ratio=f"{factor:.3g}", N=N)
    # One number is a multiple of any other.
    several = [name for name in ratios if case.update.values["state"][name].size > 1]
    return named("another scale", several, ratio=f"{ratios[several[0]]:.3g}") if several else None


def weight_decay(case: Case) -> Cause | None:
    """A difference that is a multiple of the old value."""
    ratios = {}
    for name, old in trees.values(case.update.state).items():
        if name in case.wrong() and old.size > 1:
            ratio, _ = multiple(case.got["state"][name][0] - case.update.values["state"][name], old)
            if case.holds(name, case.update.values["state"][name] + ratio * old):
                ratios[name] = ratio
    return named("weight decay", list(ratios), ratio=f"{next(iter(ratios.values())):.2g}") if ratios else None


def unequal_examples(case: Case) -> Cause | None:
    """Examples that are dropped, or count more than others."""
    if (weights := example_weights(case)) is None:
        return None
    dropped = np.abs(weights) < EQUAL
    if dropped.any():
        return named("dropped", dropped=places(dropped))
    low, high = np.nanmin(weights), np.nanmax(weights)
    if high - low < EQUAL * high:
        return None
    light, heavy = (places(np.abs(weights - weight) < EQUAL * high) for weight in (low, high))
    return named("counted unequally", heavy=heavy, light=light, ratio=f"{high / low:.3g}")


def example_weights(case: Case) -> np.ndarray | None:
    """`[B]`: how far the step moves when an example is replaced, as a multiple of the reference's move.

    They are read from the leaf whose moves are most nearly such multiples, where the update is linear in the gradient.
    Not-a-number for an example that is replaced by an equal one.
    """
    B = case.update.examples
    if not 2 <= B <= MOST_EXAMPLES:
        return None
    replaced = [moves(case, np.where(np.arange(B) == i, (i + B // 2) % B, np.arange(B))) for i in range(B)]
    best, weights = EQUAL, None
    for name in case.update.tolerance["state"]:
        found = np.array([each.get(name, (np.nan, np.nan)) for each in replaced])  # [B, 2]
        several = case.update.values["state"][name].size > 1  # one number is a multiple of any other
        if several and np.isfinite(found[:, 0]).sum() > B // 2 and (error := float(np.nanmax(found[:, 1]))) < best:
            best, weights = error, found[:, 0]
    return weights


def places(chosen: np.ndarray) -> str:
    """The places of the chosen examples in words: `3, 8 to 15`."""
    found = np.flatnonzero(chosen)
    runs = np.split(found, np.flatnonzero(np.diff(found) > 1) + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
