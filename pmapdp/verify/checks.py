"""The checks that compare numbers: updates, metrics, replicas, order of examples, random numbers."""

import dataclasses
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.explain import explain_metrics, explain_state
from pmapdp.verify.history import Ran, Wanted
from pmapdp.verify.report import FAILED, NOT_CHECKED, PASSED, Check
from pmapdp.verify.sentences import sentence

Leaves = dict[str, tuple[float, float]]  # difference and tolerance of each


def differences(ran: Ran, wanted: Wanted, of_metrics: bool) -> list[Leaves]:
    """How far the leaves of the state (or metrics) are off after each update, and what rounding allows."""
    found = []
    for update, outcome in zip(wanted.updates, ran.outcomes, strict=True):
        want, got = (update.want_metrics, outcome.metrics) if of_metrics else (update.want_state, outcome.state)
        found.append({name: (size, want.tolerance[name]) for name, size in want.differences(got).items()})
    return found


def first_wrong(each: list[Leaves]) -> tuple[int, Leaves] | None:
    """Index of the first update with a wrong leaf, and its wrong leaves."""
    wrong = [{name: pair for name, pair in leaves.items() if pair[0] > pair[1]} for leaves in each]
    return next(((number, leaves) for number, leaves in enumerate(wrong) if leaves), None)


def case_at(ran: Ran, wanted: Wanted, number: int, of_metrics: bool) -> Case:
    """The update at which something went wrong, made by the step from the reference's state if it goes wrong there."""
    update, outcome = wanted.updates[number], ran.outcomes[number]
    case = Case(ran.trial, *update, outcome, wanted.positional)
    if number > 0:
        again = dataclasses.replace(case, got=ran.trial.run(update.state, update.batch, update.key, update.like))
        if again.wrong_metrics if of_metrics else again.wrong_state:
            return again
    return case


def same_results(rans: list[Ran], wanted: Wanted, what: str = "") -> list[Check]:
    """State and metrics after every update equal the reference's, on every number of devices."""
    checks = []
    for of_metrics, name in ((False, f"same update{what}"), (True, f"same metrics{what}")):
        found: dict[int, tuple[Ran, tuple[int, Leaves]]] = {}
        right: dict[int, list[Leaves]] = {}
        for ran in rans:
            each = differences(ran, wanted, of_metrics)
            if wrong := first_wrong(each):
                found[ran.trial.N] = ran, wrong
            else:
                right[ran.trial.N] = each
        if right:
            every = [leaves for each in right.values() for leaves in each]
            checks.append(
                Check(name, PASSED, tuple(right), leaves={leaf: max(x[leaf] for x in every) for leaf in every[0]})
            )
        if found:
            ran, (number, leaves) = found[max(found)]  # more devices tell causes apart more surely
            before = first_wrong(differences(ran, wanted, False)) if of_metrics else None
            if before is not None and before[0] < number:
                cause, text = "follows", sentence("follows")
            else:
                case = case_at(ran, wanted, number, of_metrics)
                cause, text = explain_metrics(case) if of_metrics else explain_state(case)
            checks.append(Check(name, FAILED, tuple(found), text, cause, leaves, number + 1))
    return checks


def replicas_agree(ran: Ran, wanted: Wanted) -> Check:
    """The devices hold the same values, after every update, wherever they should."""
    name, devices = "replicas agree", (ran.trial.N,)
    if ran.trial.N == 1:
        return Check(name, NOT_CHECKED, devices, "one device has no replicas")
    drifts: list[dict[str, float]] = []
    for update, outcome in zip(wanted.updates, ran.outcomes, strict=True):
        drifts.append({})
        for leaf, (first, *others) in outcome.state.items():
            size = max([outcome.disagreement.get(leaf, 0.0), *(trees.distance(first, other) for other in others)])
            if size > update.want_state.tolerance[leaf] and leaf in update.want_state.values:
                drifts[-1][leaf] = size
    start = next((number for number, drift in enumerate(drifts) if drift), None)
    if start is None:
        return Check(name, PASSED, devices)
    leaf = max(drifts[start], key=drifts[start].__getitem__)
    text = (
        f"the devices' values of {leaf} differ by {drifts[start][leaf]:.2g} after update {start + 1}, and by "
        f"{drifts[-1].get(leaf, 0.0):.2g} after update {len(drifts)}."
    )
    explained = first_wrong(differences(ran, wanted, False)) is not None
    cause = "follows" if explained else "drift"
    return Check(name, FAILED, devices, f"{text} {sentence(cause, list(drifts[start]))}", cause)


def random_numbers_advance(ran: Ran, wanted: Wanted) -> Check:
    """The second update draws other random numbers than the first: by its key, its counter, or a key in its state."""
    name, devices, first = "random numbers advance", (ran.trial.N,), wanted.updates[0]
    old, new = trees.named(first.state), trees.named(first.like[0])
    random = [leaf for leaf in new if leaf in old and trees.is_random(old[leaf])]
    if first.key is None and not random:
        return Check(name, NOT_CHECKED, devices, "the step takes no key and has none in its state")
    for leaf in random:
        moved = trees.distance(trees.numbers(old[leaf]), trees.numbers(new[leaf]))
        if moved and all(trees.distance(trees.numbers(old[leaf]), x) == 0 for x in ran.outcomes[0].state[leaf]):
            return Check(name, FAILED, devices, sentence("key not returned", [leaf]), "key not returned")

    other_key = None if first.key is None else jax.random.fold_in(first.key, 7919)
    here = ran.outcomes[0]
    reseeded = run(ran, wanted, replace(first.state, lambda leaf, x: another(x) if leaf in random else x), other_key)
    compared = "metrics" if differ(here, reseeded, first, "metrics") else "state"
    if not differ(here, reseeded, first, compared):
        return Check(name, NOT_CHECKED, devices, "the result does not depend on the key")
    counted = {leaf for leaf, x in old.items() if not trees.is_float(x) and leaf in here.state}
    state = replace(first.state, lambda leaf, x: like(here.state[leaf][0], x) if leaf in counted else x)
    later = run(ran, wanted, state, wanted.updates[min(1, len(wanted.updates) - 1)].key)
    if differ(here, later, first, compared):
        return Check(name, PASSED, devices)
    return Check(name, FAILED, devices, sentence("key stands still"), "key stands still")


def run(ran: Ran, wanted: Wanted, state: Any, key: Any) -> Any:
    """The first update of the step with another state or key."""
    first = wanted.updates[0]
    return ran.trial.run(state, first.batch, key, first.like)


def differ(a: Any, b: Any, update: Any, what: str) -> bool:
    """Whether two outcomes differ in their metrics, or in the floating-point leaves of their state."""
    want = update.want_metrics if what == "metrics" else update.want_state
    first, second = getattr(a, what), getattr(b, what)
    return any(
        trees.distance(first[n][0], second[n][0]) > tolerance for n, tolerance in want.tolerance.items() if tolerance
    )


def replace(state: Any, change: Any) -> Any:
    """The state with `change(name, leaf)` in place of each leaf."""
    return jax.tree.map_with_path(lambda path, leaf: change(trees.name(path), leaf), state)


def another(leaf: Any) -> Any:
    """Another seed in place of a key or counter."""
    return jax.random.fold_in(leaf, 7919) if trees.is_key(leaf) else np.asarray(leaf) + np.uint32(7919)


def like(values: np.ndarray, leaf: Any) -> Any:
    """Numbers in the form of a leaf."""
    if trees.is_key(leaf):
        return jax.random.wrap_key_data(jax.numpy.asarray(values, np.uint32), impl=jax.random.key_impl(leaf))
    return values.astype(np.asarray(leaf).dtype)
