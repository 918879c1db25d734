"""Mistakes that change the size of an update: sums for means, the learning rate, weight decay."""

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.runs import given
from pmapdp.verify.sentences import Cause, named

CLEAR = 1e-3  # relative error with which a scale must explain a difference


def scale(case: Case) -> Cause | None:
    """Leaves that move by a multiple. Two batches are compared, so that a weight decay does not count."""
    index = np.arange(trees.number_of_examples(case.batch)) // 2
    got, wanted = case.rerun(trees.rows(case.batch, index))
    ratios = {}
    for name, value in case.want_state.values.items():
        wanted_move, move = wanted[name] - value, got.state[name][0] - case.got.state[name][0]
        if np.linalg.norm(wanted_move) > case.want_state.tolerance[name]:
            ratio = np.vdot(wanted_move, move).real / np.vdot(wanted_move, wanted_move).real
            if np.linalg.norm(move - ratio * wanted_move) < CLEAR * np.linalg.norm(move):
                ratios[name] = ratio
    scaled = {name: ratio for name, ratio in ratios.items() if name in case.wrong_state and abs(ratio - 1) > CLEAR}
    if not scaled:
        return None
    N, shapes = case.trial.N, [np.shape(case.old[name]) for name in ratios if name not in case.wrong_state]
    # Under Adam the moments have the factor, and some parameters its inverse: most leaves decide.
    cause, factor, leaves = "another scale", next(iter(scaled.values())), list(scaled)
    candidates = {"sum for mean": N, "averaged twice": 1 / N} if N > 1 else {}
    found = {
        name: [leaf for leaf, ratio in scaled.items() if abs(ratio / expected - 1) < CLEAR]
        for name, expected in candidates.items()
    }
    if any(found.values()):
        cause = max(found, key=lambda name: len(found[name]))
        factor, leaves = candidates[cause], found[cause]
    # The moments of an optimizer have the shapes of its parameters; if they are right, so is the gradient.
    if all(np.shape(case.old[name]) in shapes and np.size(case.old[name]) > 1 for name in scaled):
        cause, leaves = "learning rate", list(scaled)
    elif cause == "sum for mean" and "check_vma=True" in program_text(case):
        cause = "check_vma"
    return named(cause, leaves, ratio=f"{factor:.3g}", N=N)


def program_text(case: Case) -> str:
    """The step's jaxpr as text; empty where it cannot be traced."""
    try:
        return str(jax.make_jaxpr(case.trial.step)(*given(*case.trial.place(case.state, case.batch, case.key))))
    except Exception:  # whatever a step does that cannot be traced; only the wording of a sentence depends on it
        return ""


def decay(case: Case) -> Cause | None:
    """A difference that is a multiple of the old value."""
    found = {}
    for name in case.wrong_parameters:
        difference, old = case.got.state[name][0] - case.want_state.values[name], case.old.get(name)
        if old is not None and np.size(old) > 1 and np.linalg.norm(old) > 0:
            ratio = np.vdot(old, difference).real / np.vdot(old, old).real
            if np.linalg.norm(difference - ratio * old) < 100 * CLEAR * np.linalg.norm(difference):
                found[name] = ratio
    return named("weight decay", list(found), ratio=f"{next(iter(found.values())):.2g}") if found else None
