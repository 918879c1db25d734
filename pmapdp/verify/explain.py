"""Find the cause of a wrong state: compute what the reference would return if the step made a known mistake.

A hypothesis is accepted only where it explains nearly all of the difference, on every leaf that clearly differs, and
where it predicts nothing for the leaves that are right. Each function below tries one family of mistakes and returns
the cause, and how much of the difference it explains where that can be said; or None. The user's functions may fail for
other batches: then a family is not tried, and the report says what else is sure.
"""

import functools
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.examples import multiple, unequal_examples
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.program import program_text
from pmapdp.verify.random_numbers import other_numbers, same_mask
from pmapdp.verify.search import REST, Found, Search, attempt


def explain_state(case: Case, alike: bool, facts: str = "") -> Cause:
    """The cause of a wrong state.

    Args:
        alike: whether one device is off in the same way, so that no cause which needs several devices is possible.
        facts: what else is sure, for where no cause is.
    """
    search = Search(case, alike)
    of_several = (replicas, statistics, same_mask, means, rate, other_numbers)
    for look in (replicas, statistics, same_mask, scale, means, rate, weight_decay, padding, examples, other_numbers):
        found = None if alike and look in of_several else attempt(functools.partial(look, search))
        if found:
            (cause, sentence), part = found
            return cause, sentence + ("" if part is None else f" This explains {100 * part:.3g} % of the difference.")
    return named("unknown", list(search.wrong), facts=f"{sure(search)} {facts}".strip())


def replicas(search: Search) -> Found:
    """Devices that hold different values."""
    case, differ = search.case, []
    for name in search.clear:
        copies, (far, tolerance) = case.got["state"][name], search.wrong[name]
        if max(trees.distance(copy, copies[0]) for copy in copies) > max(tolerance, REST * far):
            differ.append(name)
    if not differ:
        return None
    local = {name: part for name in differ if (part := is_local(search, name)) is not None}
    trained = [name for name in differ if name in search.trained]
    if found := [name for name in trained if name in local]:
        return named("no all-reduce", found), min(local[name] for name in found)
    old = search.old
    keys = [name for name in differ if name not in local and name in old and old[name].dtype.kind in "iu"]
    if trained or keys == differ:  # whole numbers that do not come from a device's examples, as keys
        return named("drift", trained or keys), None
    return named("local statistics", differ), min(local.values(), default=None)


def is_local(search: Search, name: str) -> float | None:
    """How surely each device holds the result of its own examples: what the reference makes of them, or values whose
    mean over the devices is right, of no two devices the same as device 0's. None where it does not."""
    (far, tolerance), right = search.wrong[name], search.case.update.values["state"][name]
    copies = search.case.got["state"][name]
    if right.dtype.kind in "fc" and len(copies) == search.N:
        rest, most = trees.distance(np.mean(copies, axis=0), right), max(tolerance, REST * far)
        same = any(trees.distance(copy, copies[0]) <= most for copy in copies[1:])  # as after a mean over some devices
        if np.isfinite(far) and rest <= most and not same:
            return 1 - rest / far
    return search.explains({name: [part["state"][name] for part in search.parts]}, [name]) if search.parts else None


def statistics(search: Search) -> Found:
    """Batch statistics of one device, or averaged although they are no averages."""
    own = search.statistics
    names = [name for name in search.clear if name in own]
    if names and (parts := search.parts):
        mean = {name: np.mean([part["state"][name] for part in parts], axis=0) for name in names}
        for values in (mean, parts[0]["state"]):
            if (part := search.explains(values, names)) is not None:
                return named("local statistics", names), part
    return None


def scale(search: Search) -> Found:
    """The update of a multiple of the gradient, or of one of several gradients."""
    if not search.gradient or not search.at_whole:
        return None
    N, wrong = search.N, search.trained & set(search.wrong)
    usual = {} if search.alike else {N: "sum for mean", 1 / N: "averaged twice", N * N: "another scale"}
    behind = [set().union(*(each[name] for name in wrong)) for each in map(search.behind, search.gradient.cuts)]
    for ratio in (*usual, *(search.moves(name)[0] for name in search.several[:3])):
        for cut, values, places in zip(search.gradient.cuts, search.at_whole, behind, strict=True):
            for numbers in (False, True):  # a number at the cut is a count, or a gradient
                if not np.isfinite(ratio) or abs(ratio - 1) < 1e-3 or (numbers and all(cut.arrays)):
                    continue
                scaled = {place for place in places if cut.arrays[place] or numbers}
                changed = [x * ratio if place in scaled else x for place, x in enumerate(values)]
                fitted = ratio not in usual
                if (part := search.explains(search.through(cut, changed), fitted=fitted)) is not None:
                    cause = usual.get(ratio, "another scale")
                    summed = ratio in (N, N * N) and ratio in usual
                    if summed and "check_vma=True" in text_of_step(search.case):
                        cause = "check_vma"
                    return named(cause, list(search.wrong), ratio=f"{ratio:.3g}", N=N), part
    return None


def text_of_step(case: Case) -> str:
    """The step's program as JAX prints it; empty where it cannot be traced."""
    arguments = case.trial.convention.arguments(*case.trial.place(case.update))
    return attempt(lambda: program_text(case.trial.step, arguments)) or ""


def means(search: Search) -> Found:
    """The mean of what each device computes, at one of the cuts or of the results; or a mean with other weights."""
    wrong = list(search.wrong)
    if search.gradient and search.at_parts:
        for cut, each in zip(search.gradient.cuts, zip(*search.at_parts, strict=True), strict=True):
            mean = [np.mean(x, axis=0) if x[0].dtype.kind == "f" else x[0] for x in zip(*each, strict=True)]
            if (part := search.explains(search.through(cut, mean))) is not None:
                return named("nonlinear" if cut.by_norm else "mean of means", wrong), part
    if not search.parts:
        return None
    names = search.parts[0]["state"]
    part = search.explains({name: np.mean([each["state"][name] for each in search.parts], axis=0) for name in names})
    return None if part is None else (named("mean of means", wrong), part)


def rate(search: Search) -> Found:
    """The learning rate times N: the change of some leaves is N times as large, and the others are right."""
    old, new = search.old, search.case.update.values["state"]
    if not search.trained & set(search.wrong):
        return None
    scaled = {name: old[name] + search.N * (new[name] - old[name]) for name in search.wrong if name in old}
    part = search.explains(scaled, list(search.wrong))
    return None if part is None else (named("sum for mean", list(search.wrong), ratio=search.N, N=search.N), part)


def weight_decay(search: Search) -> Found:
    """A difference that is the same multiple of the old value in every wrong leaf."""
    if not search.several:
        return None
    old, new = search.old, search.case.update.values["state"]
    ratio = float(np.median([multiple(search.case.got["state"][n][0] - new[n], old[n])[0] for n in search.several]))
    part = search.explains({name: new[name] + ratio * old[name] for name in search.wrong}, list(search.wrong))
    return None if part is None else (named("weight decay", list(search.wrong), ratio=f"{ratio:.2g}"), part)


def padding(search: Search) -> Found:
    """Padding that the layout adds counts as examples."""
    padded, rows = search.once("padded", lambda: padded_batch(search.case)) or (None, 0)
    part = search.explains(search.case.reference(batch=padded)["state"]) if rows else None
    return None if part is None else (named("padding counts", list(search.wrong), rows=rows), part)


def padded_batch(case: Case) -> tuple[Any, int]:
    """The batch with the rows that the layout adds, as the reference takes it, and their number; 0 where none are."""
    _, placed, *_ = case.trial.place(case.update)
    given = case.update.batch
    if case.update.axis or not trees.same_structure(placed, given):
        return None, 0

    def flat(x: Any, like: Any) -> np.ndarray:
        return np.asarray(x).reshape(-1, *np.shape(x)[2:]) if np.ndim(x) > np.ndim(like) else np.asarray(x)

    padded = jax.tree.map(flat, placed, given)
    rows = len(jax.tree.leaves(padded)[0])
    return padded, rows if rows > case.update.examples else 0


def examples(search: Search) -> Found:
    """Examples that are dropped, or count more than others."""
    cause = unequal_examples(search.case, search.several)
    return None if cause is None else (cause, None)


def sure(search: Search) -> str:
    """What is sure of a difference whose cause is not known."""
    case, name = search.case, next(iter(search.wrong))
    facts = [f"Wrong: {len(search.wrong)} of {len(case.update.allowed['state'])} leaves."]
    copies, far = case.got["state"][name], search.wrong[name][0]
    if len(copies) > 1:
        apart = max(trees.distance(copy, copies[0]) for copy in copies)
        facts.append(f"The devices hold {'different' if apart > REST * far else 'the same'} values.")
    if name in search.old and search.old[name].dtype.kind in "fci":
        ratio, error = search.moves(name)
        if error < 0.01 * abs(ratio):
            facts.append(f"{name} moves {ratio:.3g} times as far as in the reference.")
    if search.alike:
        facts.append("The step differs in the same way on one device, so no average over devices is at fault.")
    elif case.update.examples and attempt(lambda: depends_on_order(case)):
        facts.append("The result changes when the same examples come in another order, and the reference's does not.")
    return " ".join(facts)


def depends_on_order(case: Case) -> bool:
    """Whether the step's result changes with the order of the examples, and the reference's does not."""
    if case.positional:
        return False
    got, _ = case.rerun(case.shuffled)
    return bool(case.differ("state", got, {name: copies[0] for name, copies in case.got["state"].items()}))
