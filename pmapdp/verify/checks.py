"""The checks that compare numbers: equal updates and metrics on every number of devices, and random numbers."""

import jax

from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.explain import explain_metrics, explain_state
from pmapdp.verify.mistakes import named
from pmapdp.verify.report import FAILED, NOT_CHECKED, PASSED, Check
from pmapdp.verify.rounding import Update
from pmapdp.verify.runs import Outcome, Ran, StepFailedError

Leaves = dict[str, tuple[float, float]]  # how far each is off, and what rounding allows


def same_results(rans: dict[int, Ran], updates: list[Update], what: str = "") -> list[Check]:
    """State and metrics after every update equal the reference's, on every number of devices."""
    checks = []
    for part, noun in (("state", "update"), ("metrics", "metrics")):
        name = f"same {noun}{what}"
        wrong = {N: first for N, ran in rans.items() if (first := first_wrong(ran, updates, part)) is not None}
        if right := [ran for N, ran in rans.items() if N not in wrong]:
            devices = tuple(ran.trial.N for ran in right)
            checks.append(Check(name, PASSED, devices, leaves=largest_differences(right, updates, part)))
        if wrong:
            N = max(wrong)  # more devices tell causes apart more surely
            ran, first = rans[N], wrong[N]
            case = Case(ran.trial, updates[first], ran.outcomes[first])
            earlier = part == "metrics" and first_wrong(ran, updates[:first], "state") is not None
            cause, text = (
                named("follows") if earlier else explain_state(case) if part == "state" else explain_metrics(case)
            )
            leaves = getattr(updates[first], part).wrong(getattr(ran.outcomes[first], part))
            checks.append(Check(name, FAILED, tuple(wrong), text, cause, leaves, first + 1))
    return checks


def first_wrong(ran: Ran, updates: list[Update], part: str) -> int | None:
    """The first update, counted from 0, with a wrong leaf in the state or in the metrics."""
    pairs = enumerate(zip(updates, ran.outcomes, strict=False))
    return next((n for n, (update, got) in pairs if getattr(update, part).wrong(getattr(got, part))), None)


def largest_differences(rans: list[Ran], updates: list[Update], part: str) -> Leaves:
    """How far each leaf is off at most, after any update."""
    found: Leaves = {}
    for ran in rans:
        for update, got in zip(updates, ran.outcomes, strict=True):
            want = getattr(update, part)
            for leaf, size in want.differences(getattr(got, part)).items():
                found[leaf] = max(found.get(leaf, (0.0, 0.0)), (size, want.tolerance[leaf]))
    return found


def random_numbers_advance(ran: Ran, updates: list[Update]) -> Check:
    """The second update draws other random numbers than the first: by its key, its counter, or a key in its state."""
    name, devices, first = "random numbers advance", (ran.trial.N,), updates[0]
    state, batch, *key = first.arguments
    if not key and not any(map(trees.is_random, jax.tree.leaves(state))):
        return Check(name, NOT_CHECKED, devices, "the step takes no key and has none in its state")
    if len(updates) == 1:
        return Check(name, NOT_CHECKED, devices, "it takes 2 updates, updates=2")
    try:
        here = ran.outcomes[0]
        other_state, *other_key = trees.reseed((state, *key))
        reseeded = ran.trial.run(first._replace(arguments=(other_state, batch, *other_key)))
        part = "metrics" if differ(here, reseeded, first, "metrics") else "state"
        if not differ(here, reseeded, first, part):
            return Check(name, NOT_CHECKED, devices, "the result does not depend on the key")
        # The first update once more, with the counters and keys of the second: what differs was drawn.
        returned, _ = ran.trial.call(*ran.trial.place(first))
        start = jax.tree.map(lambda a, b: a if trees.is_float(a) else b, ran.trial.place_state(first), returned)
        rest = ran.trial.place_rest(first._replace(arguments=(state, batch, *updates[1].arguments[2:])))
        later = ran.trial.read(*ran.trial.call(start, *rest), first)
    except StepFailedError as error:
        return Check(name, NOT_CHECKED, devices, str(error))
    if differ(here, later, first, part):
        return Check(name, PASSED, devices)
    cause, text = named("key stands still")
    return Check(name, FAILED, devices, text, cause)


def differ(a: Outcome, b: Outcome, update: Update, part: str) -> bool:
    """Whether two outcomes differ in their metrics, or in the floating-point leaves of their state."""
    tolerances = getattr(update, part).tolerance.items()
    first, second = getattr(a, part), getattr(b, part)
    return any(trees.distance(first[n][0], second[n][0]) > tolerance for n, tolerance in tolerances if tolerance)
