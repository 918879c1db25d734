"""The checks: equal updates and metrics, random numbers that advance, split work, one compilation and no transfers.

A check but the first is a function of the updates of a step that returns the cause of a mistake, or None, or raises a
`NotCheckedError` that says why it cannot be made.
"""

import re
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from pmapdp.errors import reason
from pmapdp.verify import trees
from pmapdp.verify.case import Case, Differences, first_wrong, step_updates
from pmapdp.verify.explain import explain_metrics, explain_state
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.report import FAILED, PASSED, Check, NotCheckedError
from pmapdp.verify.rounding import program_text

LOOP = re.compile(r" (scan|while)\[")
ENOUGH = 0.5  # of the work must depend on the number of examples, or how it is split cannot be seen


def same_results(runs: dict[int, list[Case]], part: str, name: str) -> list[Check]:
    """The "state" or the "metrics" after every update equal the reference's, on every number of devices."""
    checks = []
    firsts = {N: first for N, cases in runs.items() if (first := first_wrong(cases, part)) is not None}
    if right := [N for N in runs if N not in firsts]:
        leaves: Differences = {}  # how far each is off at most
        for case in (case for N in right for case in runs[N]):
            leaves |= {leaf: max(pair, leaves.get(leaf, pair)) for leaf, pair in case.differences[part].items()}
        checks.append(Check(name, PASSED, tuple(right), leaves=leaves))
    if firsts:
        N, first = max(firsts.items())  # more devices tell causes apart more surely
        case, earlier = runs[N][first], first_wrong(runs[N], "state")
        if part == "state":
            cause, text = explain_state(case)
        else:
            cause, text = explain_metrics(case) if earlier is None or earlier >= first else named("follows")
        checks.append(Check(name, FAILED, tuple(firsts), text, cause, case.wrong(part), first + 1))
    return checks


def random_numbers_advance(cases: list[Case]) -> Cause | None:
    """The second update draws other random numbers than the first: by its key, its counter, or a key in its state."""
    case, trial, first = cases[0], cases[0].trial, cases[0].update
    if not first.key and not any(map(trees.is_random, jax.tree.leaves(first.state))):
        raise NotCheckedError("the step takes no key and has none in its state")
    if len(cases) == 1:
        raise NotCheckedError("it takes 2 updates, updates=2")
    if (part := case.draws) is None:
        raise NotCheckedError("the result does not depend on the key")
    # The first update once more, with the counters and keys of the second: what differs was drawn.
    returned = trial.call(*trial.place(first))["state"]
    start, *rest = trial.place(first._replace(key=cases[1].update.key))
    start = jax.tree.map(lambda a, b: a if trees.is_float(a) else b, start, returned)
    later = trial.read(trial.call(start, *rest), first)
    here, there = ({name: copies[0] for name, copies in got[part].items()} for got in (case.got, later))
    return None if case.differ(part, here, there) else named("key stands still")


def work_is_split(cases: list[Case]) -> Cause | None:
    """A device makes about 1/N of the operations of the reference on the whole batch, by the compiler's count of all
    programs that a call of the step runs: a Python function around a compiled step may run others."""
    trial, N, update = cases[0].trial, cases[0].trial.N, cases[0].update
    if N == 1:
        raise NotCheckedError("one device makes all of the work")
    whole = update.arguments
    if any(map(LOOP.search, (program_text(trial.reference, whole), program_text(trial.step, trial.place(update))))):
        raise NotCheckedError("the compiler's count of operations does not follow loops")
    programs = cases[0].programs
    if not programs:  # they were compiled before
        jax.clear_caches()
        programs = step_updates(trial, [update])[0].programs
    if not programs:
        raise NotCheckedError("the programs of the step are not in memory after a call")
    reference = trial.reference.lower(*whole)
    part = trial.reference.lower(whole[0], trees.parts(whole[1], N)[0], *whole[2:])
    share = operations(part) / (operations(reference) or 1)
    if not 0 < share <= 1 - ENOUGH * (1 - 1 / N):
        raise NotCheckedError("too little of the work depends on the number of examples")
    mine = sum(operations(program) * len(program.local_devices()) for program in programs) / N
    mine /= operations(reference.compile()) or 1
    return named("every device computes everything", ratio=mine, part=share) if mine >= (1 + share) / 2 else None


def operations(program: Any) -> float:
    """Floating-point operations of a lowered program, or on one device of a compiled one, by the compiler's count."""
    return float((program.cost_analysis() or {}).get("flops", 0))


def compiled_once(cases: list[Case]) -> Cause | None:
    """Nothing is compiled after the second update (the first may change types, as a Python number becomes an array),
    but for a batch of another size."""
    usual = [number for number, case in enumerate(cases) if case.update.examples == cases[0].update.examples]
    if len(usual) < 3:
        raise NotCheckedError("it takes 3 updates, updates=3")
    late = [number for number in usual[2:] if cases[number].compilations]
    return named("recompilation", update=late[0] + 1) if late else None


def no_transfers(cases: list[Case]) -> Cause | None:
    """No array moves implicitly to a device or between devices in a call."""
    if compiled_once(cases):
        raise NotCheckedError("compiling moves constants, and the step is compiled in every update")
    trial, first = cases[0].trial, cases[0].update
    state, *rest = trial.place(first)
    names = trees.named(dict(zip(("state", "batch", "key"), (state, *rest), strict=False)))
    if host := [name for name, leaf in names.items() if isinstance(leaf, np.ndarray)]:
        raise NotCheckedError(f"the layout leaves {host[0]} on the host, whose transfer hides others")
    for _ in range(2):  # so that all is compiled that the first and the second update need
        state = trial.call(state, *rest)["state"]
        _, *rest = trial.place(first)
    try:
        with jax.transfer_guard("disallow"):
            jax.block_until_ready(trial.step(state, *rest))
    except JaxRuntimeError as error:
        what = reason(error)
        if "[]" in what or "shape=()" in what:
            raise NotCheckedError(f"a number is moved in every call ({what}), and hides what follows") from error
        return named("transfer", what=what)
    return None


CHECKS = {
    "random numbers advance": random_numbers_advance,
    "the work is split": work_is_split,
    "compiled once": compiled_once,
    "no implicit transfers": no_transfers,
}
