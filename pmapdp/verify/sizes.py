"""Mistakes of size: sums for means, the learning rate, weight decay, and how much each example counts."""

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


def scale(case: Case) -> Cause | None:
    """Leaves that move by a multiple. Two batches are compared, so that a weight decay does not count."""
    N, ratios = case.trial.N, {}
    got, wanted = case.rerun(np.arange(trees.number_of_examples(case.update.arguments[1])) // 2)
    for name in case.wrong:
        move = wanted[name] - case.want.values[name]
        if np.linalg.norm(move) > case.want.tolerance[name]:
            ratio, error = multiple(got[name] - case.got["state"][name][0], move)
            if error < CLEAR * abs(ratio) and abs(ratio - 1) > CLEAR:
                ratios[name] = ratio
    # Under Adam the moments have the factor N, and some leaves others.
    for cause, factor in (("sum for mean", N), ("averaged twice", 1 / N)):
        if leaves := [name for name, ratio in ratios.items() if abs(ratio / factor - 1) < CLEAR]:
            if factor > 1 and "check_vma=True" in step_text(case):
                cause = "check_vma"
            return named(cause, leaves, ratio=f"{factor:.3g}", N=N)
    several = [name for name in ratios if np.size(wanted[name]) > 1]  # one number is a multiple of any other
    return named("another scale", several, ratio=f"{ratios[several[0]]:.3g}") if several else None


def step_text(case: Case) -> str:
    """The step's jaxpr; empty where it cannot be traced."""
    try:
        return program_text(case.trial.step, case.trial.place(case.update))
    except Exception:  # whatever a step does that cannot be traced; only the wording of a sentence depends on it
        return ""


def weight_decay(case: Case) -> Cause | None:
    """A difference that is a multiple of the old value."""
    ratios = {}
    for name, old in trees.values(case.update.arguments[0]).items():
        if name in case.wrong and np.size(old) > 1:
            ratio, error = multiple(case.got["state"][name][0] - case.want.values[name], old)
            if error < 0.1 * abs(ratio):
                ratios[name] = ratio
    return named("weight decay", list(ratios), ratio=f"{next(iter(ratios.values())):.2g}") if ratios else None


def unequal_examples(case: Case) -> Cause | None:
    """Examples that are dropped, or count more than others."""
    if not 2 <= trees.number_of_examples(case.update.arguments[1]) <= MOST_EXAMPLES:
        return None
    weights = example_weights(case)
    if weights is None:
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
    B = trees.number_of_examples(case.update.arguments[1])
    all_places = np.arange(B)
    replaced = [case.rerun(np.where(all_places == i, (i + B // 2) % B, all_places)) for i in range(B)]
    best: tuple[float, np.ndarray | None] = EQUAL, None
    for name, value in case.want.values.items():
        weights, errors = np.full(B, np.nan), np.full(B, np.nan)
        for i, (got, wanted) in enumerate(replaced):
            move = wanted[name] - value
            if np.linalg.norm(move) > case.want.tolerance[name]:
                weights[i], errors[i] = multiple(got[name] - case.got["state"][name][0], move)
        if np.isfinite(weights).sum() > B // 2 and (error := float(np.nanmedian(errors))) < best[0]:
            best = error, weights
    return best[1]


def places(chosen: np.ndarray) -> str:
    """The places of the chosen examples in words: `3, 8 to 15`."""
    found = np.flatnonzero(chosen)
    runs = np.split(found, np.flatnonzero(np.diff(found) > 1) + 1)
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
