"""The checks: equal updates and metrics, random numbers that advance, split work, one compilation and no transfers.

A check but the first is a function of the updates of a step that returns the cause of a mistake, or None, or raises a
`NotCheckedError` that says why it cannot be made.
"""

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from pmapdp.errors import reason
from pmapdp.verify import trees
from pmapdp.verify.case import Case, first_wrong
from pmapdp.verify.cuts import Gradient
from pmapdp.verify.examples import multiple
from pmapdp.verify.explain import explain_state
from pmapdp.verify.metrics import explain_metrics
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.report import FAILED, NOT_CHECKED, PASSED, Check, NotCheckedError, NotProvenError
from pmapdp.verify.search import attempt
from pmapdp.verify.trees import Leaves
from pmapdp.verify.trial import blame
from pmapdp.verify.work import work_is_split

REDRAWN = 1e-3  # of the change that other random numbers make: what changes by less than this is rounding
ALIKE = 0.1  # relative difference of how far one device and several are off


def same_results(runs: dict[int, list[Case]], part: str, name: str) -> list[Check]:
    """The "state" or the "metrics" after every update equal the reference's, on every number of devices."""
    checks = []
    firsts = {N: first for N, cases in runs.items() if (first := first_wrong(cases, part)) is not None}
    sound = [N for N, cases in runs.items() if first_wrong(cases, "state") is first_wrong(cases, "metrics") is None]
    lost = [N for N in sound if any(case.wrong(part, in_a_row=True) for case in runs[N])]
    if right := [N for N in runs if N not in firsts and N not in lost]:
        leaves: dict[str, tuple[float, float]] = {}  # how far each is off at most
        for case in (case for N in right for case in runs[N]):
            # Where something else is wrong, the updates in a row differ because of it.
            in_a_row = case.off(part, in_a_row=True) if case.trial.N in sound else {}
            for leaf, (far, most) in (*case.off(part).items(), *in_a_row.items()):
                if most.kind != "blind":
                    leaves[leaf] = max((far, most.tolerance), leaves.get(leaf, (0.0, 0.0)))
        checks.append(Check(name, PASSED, tuple(right), leaves=leaves))
    if firsts:
        N, first = max(firsts.items())  # more devices tell causes apart more surely
        case, earlier = runs[N][first], first_wrong(runs[N], "state")
        alike, more = is_alike(runs, case, part), facts(runs[N], case)
        if part == "state":
            cause, text = explain_state(case, alike, more)
        elif earlier is None or earlier >= first or case.trial.N == 1:
            cause, text = explain_metrics(case, alike, more)
        else:
            cause, text = named("follows")
        checks.append(Check(name, FAILED, tuple(firsts), text, cause, case.wrong(part), case.number + 1))
    if lost:
        case = next(case for case in runs[max(lost)] if case.wrong(part, in_a_row=True))
        wrong = case.wrong(part, in_a_row=True)
        cause, text = named("hidden state", list(wrong))
        checks.append(Check(f"{name} in a row", FAILED, tuple(lost), text, cause, wrong, case.number + 1))
    return checks


def is_alike(runs: dict[int, list[Case]], case: Case, part: str) -> bool:
    """Whether the step is off on one device as it is on several."""
    if case.trial.N == 1:
        return True
    wrong = case.wrong(part)
    for single in runs.get(1, []):
        if single.number == case.number:
            alone = single.wrong(part)
            same = [n for n in wrong if n in alone and abs(alone[n][0] - wrong[n][0]) <= ALIKE * wrong[n][0]]
            return len(same) > len(wrong) / 2
    return False


def facts(cases: list[Case], case: Case) -> str:
    """Which updates are wrong, where the first is right."""
    if case.number == 0:
        return ""
    if case.update.examples != cases[0].update.examples:
        return f"Only the update with {case.update.examples} examples is wrong."
    return f"The first update is right, and update {case.number + 1} is wrong."


def random_numbers_advance(cases: list[Case]) -> Cause | None:
    """The second update draws other random numbers than the first: by its key, its counter, or a key in its state.

    What is drawn are the leaves that change with other seeds: a learning rate among the metrics does not.
    """
    case, trial, first = cases[0], cases[0].trial, cases[0].update
    if not first.key and not any(map(trees.is_random, jax.tree.leaves(first.state))):
        raise NotCheckedError("the step takes no key and has none in its state")
    if len(cases) == 1:
        raise NotCheckedError("it takes 2 updates, updates=2")
    if not any(case.drawn.values()):
        raise NotCheckedError("the result does not depend on the key")
    # The first update once more, with the counters and keys of the second: what differs was drawn.
    returned = trial.call(*trial.place(first))
    start, batch, *key = trial.place(first._replace(key=cases[1].update.key))
    start = jax.tree.map(lambda a, b: a if trees.is_float(a) else b, start, returned["state"])
    later = trial.read(trial.call(start, batch, *([returned["key"]] if "key" in returned else key)), first)
    here, there = (
        {part: {name: copies[0] for name, copies in leaves.items()} for part, leaves in got.items()}
        for got in (case.got, later)
    )
    if drawn_anew(case, here, there):
        return None
    keys = [trees.values(update.key) for update in (first, cases[1].update)]
    one_key = first.key and "key" not in returned and jax.tree.all(jax.tree.map(np.array_equal, *keys))
    if one_key and not reference_advances(cases):
        new = "jax.random.fold_in(key, update)"
        new = f"jax.random.split({new}, {trial.N})" if trial.own("key") else new
        raise NotProvenError(
            "both updates were given the same key, and step and reference draw the same numbers from it. If your loop "
            f"passes a new key every time, give key=lambda update: {new}; if it passes the same key, fold the "
            "update's number into it in the step"
        )
    return named("key stands still")


def reference_advances(cases: list[Case]) -> bool:
    """The same of the reference: then the results of a step whose key stands still must differ from it."""
    first, second = cases[0], cases[1].update
    state = jax.tree.map(lambda a, b: a if trees.is_float(a) else b, first.update.state, second.state)
    return drawn_anew(first, first.update.values, first.reference(state=state, key=second.key))


def drawn_anew(case: Case, here: dict[str, Leaves], there: dict[str, Leaves]) -> bool:
    """Whether two results differ in what is drawn: in the metrics, or in the state where these draw nothing."""
    part = "metrics" if case.drawn["metrics"] else "state"
    least = {name: REDRAWN * far for name, far in case.drawn[part].items()}
    changed = [name for name in least if trees.distance(here[part][name], there[part][name]) > least[name]]
    if part == "metrics" or not changed:
        return bool(changed)
    # A learning rate by a schedule scales the change of the state, and draws nothing.
    old = trees.values(case.update.state)
    pairs = [
        multiple(there[part][name] - old[name], here[part][name] - old[name]) for name in changed if old[name].size > 1
    ]
    return not pairs or not all(error < 1e-3 * abs(ratio) for ratio, error in pairs)


def compiled_once(cases: list[Case]) -> Cause | None:
    """Nothing is compiled after the second update, but for a batch of another size."""
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
    placed = trial.place(first)
    names = trees.named(dict(zip(("state", "batch", "key"), placed, strict=False)))
    if host := [name for name, leaf in names.items() if isinstance(leaf, np.ndarray)]:
        raise NotCheckedError(f"the layout leaves {host[0]} on the host, whose transfer hides others")
    state, batch, *key = placed
    for _ in range(2):  # so that all is compiled that the first and the second update need
        returned = trial.call(state, batch, *key)
        _, batch, *key = trial.place(first)
        state, key = returned["state"], [returned["key"]] if "key" in returned else key
    arguments = trial.convention.arguments(state, batch, *key)
    try:
        with jax.transfer_guard("disallow"):
            jax.block_until_ready(trial.step(*arguments))
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


def other_checks(cases: list[Case]) -> list[Check]:
    """The checks besides equal results, of the updates on one number of devices."""
    checks, devices = [], (cases[0].trial.N,)
    for name, look in CHECKS.items():
        try:
            found = look(cases)
            checks.append(Check(name, FAILED, devices, found[1], found[0]) if found else Check(name, PASSED, devices))
        except NotCheckedError as why:
            checks.append(Check(name, why.status, devices, str(why)))
        except Exception as error:  # whatever a step does that cannot be traced: it may be right all the same
            checks.append(
                Check(name, NOT_CHECKED, devices, f"the step cannot be called or traced for it, {blame(error)}")
            )
    if attempt(lambda: all(map(scale_is_hidden, cases))):
        hidden = (
            "clipping hides it in every update, as would a sum in place of a mean: give a state or data with smaller "
            "gradients, or verify once without clipping"
        )
        checks.append(Check("the scale of the gradient", NOT_CHECKED, devices, hidden))
    return checks


def scale_is_hidden(case: Case) -> bool:
    """Whether the reference clips a gradient N times as large to the same update."""
    gradient = Gradient(case.trial.reference, case.update)
    if case.trial.N == 1 or not any(cut.by_norm for cut in gradient.cuts):
        return False
    cut, values = gradient.cuts[-1], gradient.at(case.update.batch)[-1]
    scaled = [value * case.trial.N if array else value for value, array in zip(values, cut.arrays, strict=True)]
    return not case.differ("state", trees.values(gradient.state(cut, scaled)), case.update.values["state"])
