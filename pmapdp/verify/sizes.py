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
    N = case.trial.N
    factors = {"sum for mean": N, "averaged twice": 1 / N} if N > 1 else {}
    found: dict[str, dict[str, float]] = {}  # ratio by leaf, of each cause
    got, wanted = case.rerun(np.arange(trees.number_of_examples(case.update.arguments[1])) // 2)
    for name in case.wrong:
        wanted_move = wanted[name] - case.want.values[name]
        if np.linalg.norm(wanted_move) > case.want.tolerance[name]:
            ratio, error = multiple(got[name] - case.got.state[name][0], wanted_move)
            causes = [cause for cause, factor in factors.items() if abs(ratio / factor - 1) < CLEAR]
            if error < CLEAR * abs(ratio) and abs(ratio - 1) > CLEAR and (causes or np.size(wanted_move) > 1):
                found.setdefault(causes[0] if causes else "another scale", {})[name] = ratio
    if not found:
        return None
    # Under Adam the moments have the factor, and some parameters others: most leaves decide.
    cause = max(found, key=lambda cause: len(found[cause]) if cause in factors else 0)
    ratio = next(iter(found[cause].values()))
    checks_vma = cause == "sum for mean" and "check_vma=True" in step_text(case)
    return named("check_vma" if checks_vma else cause, list(found[cause]), ratio=f"{ratio:.3g}", N=N)


def step_text(case: Case) -> str:
    """The step's jaxpr; empty where it cannot be traced."""
    try:
        return program_text(case.trial.step, case.trial.place(case.update))
    except Exception:  # whatever a step does that cannot be traced; only the wording of a sentence depends on it
        return ""


def weight_decay(case: Case) -> Cause | None:
    """A difference that is a multiple of the old value."""
    ratios = {}
    for name in case.wrong:
        old = case.old.get(name)
        if old is not None and np.size(old) > 1:
            difference = case.got.state[name][0] - case.want.values[name]
            ratio, error = multiple(difference, old)
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
    replaced = []
    for i in range(B):
        index = np.arange(B)
        index[i] = (i + B // 2) % B
        replaced.append(case.rerun(index))
    best: tuple[float, np.ndarray | None] = EQUAL, None
    for name, value in case.want.values.items():
        weights, errors = np.full(B, np.nan), np.full(B, np.nan)
        for i, (got, wanted) in enumerate(replaced):
            move = wanted[name] - value
            if np.linalg.norm(move) > case.want.tolerance[name]:
                weights[i], errors[i] = multiple(got[name] - case.got.state[name][0], move)
        if np.isfinite(weights).sum() > B // 2 and (error := float(np.nanmedian(errors))) < best[0]:
            best = error, weights
    return best[1]


def places(chosen: np.ndarray) -> str:
    """The places of the chosen examples in words: `3, 8 to 15`."""
    runs: list[list[int]] = []
    for place in map(int, np.flatnonzero(chosen)):
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
