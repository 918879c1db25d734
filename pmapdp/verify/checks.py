"""The checks: equal updates and metrics, random numbers that advance, and work that is split.

The last two are functions of a step's cases that return the cause of a mistake, or None, or raise a `CheckError` that
says why it cannot be made.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.causes import Case, explain_metrics, explain_state
from pmapdp.verify.mistakes import Cause, name_cause
from pmapdp.verify.reference import present
from pmapdp.verify.report import FAILED, NOT_CHECKED, NOT_COMPARED, PASSED, Check, CheckError
from pmapdp.verify.trees import Leaves, distance, multiple
from pmapdp.verify.trial import blame

REDRAWN = 1e-3  # of the change that other random numbers make: what changes by less than this is rounding
# A mistake, and the causes that other checks then seem to find.
SEEMS_TO_BE = {
    "key stands still": ("unknown", "dropped", "counted unequally", "mean of means"),
    "same mask": ("mean of means",),
    "local statistics": ("mean of means",),  # of a loss that is normalised with them
    "every device computes everything": ("unknown",),  # with masks and weights that are meant for a part of the batch
}
TOO_MUCH = 1.75  # times its part of the work: what a device may do at most; twice the work is more


def same_results(runs: dict[int, list[Case]], name: str, metrics: bool) -> list[Check]:
    """Check that the state or the metrics after every update equal the reference's, on every number of devices."""
    firsts = {N: first for N, cases in runs.items() if (first := next((c for c in cases if c.wrong(metrics)), None))}
    checks = []
    if right := [N for N in runs if N not in firsts]:
        leaves: dict[str, tuple[float, float]] = {}  # how far each is off at most
        for case in (case for N in right for case in runs[N]):
            for leaf in (leaf for leaf in case.off if case.trial.reference.is_metric(leaf) == metrics):
                leaves[leaf] = max(case.off[leaf], leaves.get(leaf, (0.0, 0.0)))
        none = "" if leaves else f"the step returns no {'metrics' if metrics else 'state'} that can be compared"
        checks.append(Check(name, NOT_CHECKED if none else PASSED, tuple(right), none, leaves=leaves))
    if firsts:
        N, case = max(firsts.items())  # more devices tell causes apart more surely
        also_on_one, B, wrong = N > 1 and 1 in firsts, case.update.examples, case.wrong(metrics)
        facts = f"Wrong: {len(wrong)} of {len(case.off)} leaves, from update {case.update.number + 1} on"
        facts += f", the only one with {B} examples" * (runs[N][0].update.examples != B)
        differ = any(map(case.differs_between_devices, wrong))
        facts += f"; the devices hold {'different' if differ else 'the same'} values" * (N > 1)
        facts += "; one device is off, too, so no average over devices is at fault" * also_on_one + "."
        cause, sentence = (explain_metrics if metrics else explain_state)(case, also_on_one, facts)
        checks.append(Check(name, FAILED, tuple(firsts), sentence, cause, wrong, case.update.number + 1))
    return checks


def random_numbers_advance(cases: list[Case]) -> Cause | None:
    """Find a second update that draws the random numbers of the first.

    What is drawn are the leaves that change with other seeds: a learning rate among the metrics does not.
    """
    case, trial, first = cases[0], cases[0].trial, cases[0].update
    if not first.key and not any(map(trees.is_random, jax.tree.leaves(first.state))):
        raise CheckError("the step has no key")
    if len(cases) == 1 or not case.drawn:
        raise CheckError("the result does not depend on the key" if len(cases) > 1 else "it takes updates=2")
    # The first update once more, with the counters and keys of the second: what differs was drawn.
    returned = trial.call(*trial.place(first))
    state, batch, *key = trial.place(first._replace(key=cases[1].update.key))
    state = jax.tree.map(lambda a, b: a if trees.is_float(a) else b, state, returned["state"])
    again = trial.read(trial.call(state, batch, *key), first.values)
    if drawn_anew(case, *({name: copies[0] for name, copies in got.items()} for got in (case.got, again))):
        return None
    one_key = jax.tree.all(jax.tree.map(np.array_equal, *(trees.values(c.update.key) for c in cases[:2])))
    state = jax.tree.map(lambda a, b: a if trees.is_float(a) else b, first.state, cases[1].update.state)
    reference = case.reference(state=state, key=cases[1].update.key)  # if it advances, the results differ
    if first.key and one_key and not drawn_anew(case, first.values, reference):
        new = "jax.random.fold_in(key, update)"
        new = f"jax.random.split({new}, {case.N})" if trial.reference.is_own("key") else new
        message = (
            "both updates were given the same key, and step and reference draw the same numbers from it. If your loop "
            f"passes a new key every time, give key=lambda update: {new}; if it passes the same key, fold the "
            "update's number into it in the step"
        )
        raise CheckError(message, NOT_COMPARED)
    return name_cause("key stands still")


def drawn_anew(case: Case, a: Leaves, b: Leaves) -> bool:
    """Return True if two results differ in what is drawn: in the metrics, or in the state if these draw nothing."""
    metrics = [name for name in case.drawn if case.trial.reference.is_metric(name)]
    changed = [n for n in metrics or case.drawn if distance(a[n], b[n]) > REDRAWN * case.drawn[n]]
    if metrics or not changed:
        return bool(changed)
    # A learning rate by a schedule scales the change of the state, and draws nothing.
    old = trees.values(case.update.state)
    pairs = [multiple(b[name] - old[name], a[name] - old[name]) for name in changed if old[name].size > 1]
    return not pairs or not all(error < 1e-3 * abs(ratio) for ratio, error in pairs)


def work_is_split(cases: list[Case]) -> Cause | None:
    """Find devices that make more than their part of the operations, by the compiler's counts."""
    case, reference, update = cases[0], cases[0].trial.reference, cases[0].update
    if case.N == 1 or not update.examples or update.examples % case.N or reference.is_own("batch"):
        raise CheckError("there is no batch that is split over several devices")
    placed = present(*case.trial.place(update))
    alone = reference.jitted_alone.lower(0, update.state, case.part(0), *update.key).compile()
    whole = reference.jitted.lower(*update.arguments).compile()
    step: Any = case.trial.step if hasattr(case.trial.step, "lower") else jax.jit(case.trial.step)
    step = step.lower(*placed).compile()
    loops = [
        re.findall(r' while\(|"known_trip_count":\{"n":"\d+"\}', str(each.as_text())) for each in (step, alone, whole)
    ]
    if sorted(loops[0]) not in (sorted(loops[1]), sorted(loops[2])):
        raise CheckError("the compiler counts a loop once, and the loops of step and reference differ")
    mine, part, all_of_it = ((each.cost_analysis() or {}).get("flops", 0) for each in (step, alone, whole))
    share, ratio = part / (all_of_it or 1), mine / (all_of_it or 1)
    most = max(TOO_MUCH * share, share + 3 * (share - 1 / case.N) / (1 - 1 / case.N))  # some is the same for any batch
    if not 0 < most < 0.9:
        raise CheckError("too little of the work depends on the number of examples")
    return name_cause("every device computes everything", ratio=ratio, part=share) if ratio >= most else None


CHECKS: dict[str, Callable[[list[Case]], Cause | None]] = {
    "random numbers advance": random_numbers_advance,
    "the work is split": work_is_split,
}


def all_checks(runs: dict[int, list[Case]]) -> list[Check]:
    """Compare the results on every number of devices, and make the other checks on the largest."""
    checks, N = same_results(runs, "same update", False) + same_results(runs, "same metrics", True), max(runs)
    for name, look in CHECKS.items():
        try:
            found = look(runs[N])
            checks.append(Check(name, FAILED, (N,), found[1], found[0]) if found else Check(name, PASSED, (N,)))
        except CheckError as why:
            checks.append(Check(name, why.status, (N,), str(why)))
        except Exception as error:  # the step may be right all the same
            checks.append(Check(name, NOT_CHECKED, (N,), f"it raises an error, {blame(error)}"))
    seeming = {seems for check in checks for seems in SEEMS_TO_BE.get(check.cause, ())}
    cause, sentence = name_cause("follows")
    return [c._replace(cause=cause, sentence=sentence) if c.cause in seeming else c for c in checks]
