"""The checks that compare numbers: equal updates and metrics on every number of devices, and random numbers."""

import jax

from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.explain import explain_metrics, explain_state
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.report import FAILED, PASSED, Check, NotCheckedError
from pmapdp.verify.rounding import Update
from pmapdp.verify.runs import Outcome, Ran, wrong


def same_results(rans: dict[int, Ran], updates: list[Update]) -> list[Check]:
    """State and metrics after every update equal the reference's, on every number of devices."""
    checks = []
    for part, name in (("state", "same update"), ("metrics", "same metrics")):
        firsts = {N: first for N, ran in rans.items() if (first := ran.first_wrong(part)) is not None}
        if right := {N: ran for N, ran in rans.items() if N not in firsts}:
            leaves: dict[str, tuple[float, float]] = {}  # how far each is off at most
            for found in (differences[part] for ran in right.values() for differences in ran.differences):
                leaves |= {leaf: max(pair, leaves.get(leaf, pair)) for leaf, pair in found.items()}
            checks.append(Check(name, PASSED, tuple(right), leaves=leaves))
        if firsts:
            N = max(firsts)  # more devices tell causes apart more surely
            ran, first = rans[N], firsts[N]
            case = Case(ran.trial, updates[first], ran.outcomes[first])
            earlier = ran.first_wrong("state")
            if part == "state":
                cause, text = explain_state(case)
            elif earlier is None or earlier >= first:
                cause, text = explain_metrics(case)
            else:
                cause, text = named("follows")
            checks.append(
                Check(name, FAILED, tuple(firsts), text, cause, wrong(ran.differences[first][part]), first + 1)
            )
    return checks


def random_numbers_advance(ran: Ran, updates: list[Update]) -> Cause | None:
    """The second update draws other random numbers than the first: by its key, its counter, or a key in its state."""
    trial, first, here = ran.trial, updates[0], ran.outcomes[0]
    state, batch, *key = first.arguments
    if not key and not any(map(trees.is_random, jax.tree.leaves(state))):
        raise NotCheckedError("the step takes no key and has none in its state")
    if len(updates) == 1:
        raise NotCheckedError("it takes 2 updates, updates=2")
    other_state, *other_key = trees.reseed((state, *key))
    reseeded = trial.run(first._replace(arguments=(other_state, batch, *other_key)))
    part = "metrics" if differ(here, reseeded, first, "metrics") else "state"
    if not differ(here, reseeded, first, part):
        raise NotCheckedError("the result does not depend on the key")
    # The first update once more, with the counters and keys of the second: what differs was drawn.
    returned = trial.call(*trial.place(first))["state"]
    start, *rest = trial.place(first._replace(arguments=(state, batch, *updates[1].arguments[2:])))
    start = jax.tree.map(lambda a, b: a if trees.is_float(a) else b, start, returned)
    later = trial.read(trial.call(start, *rest), first)
    return None if differ(here, later, first, part) else named("key stands still")


def differ(a: Outcome, b: Outcome, update: Update, part: str) -> bool:
    """Whether two outcomes differ in their metrics, or in the floating-point leaves of their state."""
    floats = [(name, tolerance) for name, tolerance in update.want[part].tolerance.items() if tolerance]
    return any(trees.distance(a[part][name][0], b[part][name][0]) > tolerance for name, tolerance in floats)
