"""Find the facts behind a difference, by experiments with the step and the reference.

- parts: the reference on each device's own examples, as if there were no all-reduce;
- influence: each example is replaced in turn, and the moves of step and reference are
  compared;
- draws: the same examples on every device show one set of random numbers;
- again: the first update once more with the second's keys shows a key that stands
  still.

A fact is what an experiment showed, with its number. It's true whatever the program
means by it. Which mistakes usually look like that is a table, `mistakes.toml`; each of
its rows has a rule over the names of facts.
"""

import contextlib
import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pmapdp.collectives import describe_exchange, instructions
from pmapdp.verify import trees
from pmapdp.verify.case import CLEAR, PREDICTS, Case
from pmapdp.verify.reference import equations, step_arguments
from pmapdp.verify.report import CheckError
from pmapdp.verify.table import Fact, fact, few
from pmapdp.verify.trees import distance, multiple

MOST_EXAMPLES = 128  # are replaced one by one: each costs a run of step and reference
# How near two examples count alike. Counts are quotients of two differences, so they're
# less exact than a prediction.
ALIKE = 0.01
MOST_WORK = 1.75  # times its part of the operations: twice the work is more


def describe_state(case: Case) -> list[Fact]:
    """Return the facts about a wrong state."""
    facts = describe_nan(case, metrics=False)
    if facts or not case.clear:
        return facts
    for look in (
        describe_devices,
        describe_draws,
        describe_factor,
        describe_parts,
        describe_examples,
    ):
        facts = look(case)
        if facts:
            return facts
    for name in case.fractions[:1]:
        ratio, error = case.change(name)
        if error < 0.1 * abs(ratio):
            facts.append(fact("moves", [name], ratio=ratio, error=error / abs(ratio)))
    return facts


def describe_nan(case: Case, metrics: bool) -> list[Fact]:
    """Say which devices hold NaN, and if their own examples make it."""
    for name in case.errors:
        devices = find_nan(case.got[name])
        if devices and case.reference.is_metric(name) == metrics:
            number = case.update.number + 1
            facts = [fact("nan", [name], devices=few(devices), update=number)]
            alone = find_nan([part[name] for part in case.parts])
            if alone:
                facts.append(fact("nan_part", devices=few(alone)))
            return facts  # the first of them made the others
    return []


def find_nan(arrays: Sequence[np.ndarray]) -> list[int]:
    """Return the devices whose arrays hold NaN."""
    return [device for device, array in enumerate(arrays) if (array != array).any()]


def describe_devices(case: Case) -> list[Fact]:
    """Say what the devices hold, if they hold different values."""
    names: dict[str, list[str]] = {}
    for name in case.wrong():
        if case.differs_between_devices(name):
            names.setdefault(compare_devices(case, name), []).append(name)
    order = ("own_examples", "right_mean", "devices_differ")
    facts = [fact(what, names[what]) for what in order if what in names]
    shared = names.get("own_examples", []) + names.get("right_mean", [])
    return facts + describe_use(case, shared)


def compare_devices(case: Case, name: str) -> str:
    """Return the name of the fact about a leaf of which the devices differ."""
    if case.parts and case.is_near(name, [part[name] for part in case.parts]):
        return "own_examples"
    # Adam's first moments have the right mean, where the parameters don't.
    copies = case.got[name]
    error, allowed = case.errors[name]
    if name in case.fractions and len(copies) == case.N and np.isfinite(error):
        nearest = min(distance(copy, copies[0]) for copy in copies[1:])
        rest = distance(np.mean(copies, 0), case.update.values[name])
        enough = PREDICTS * error
        if nearest > enough and rest <= max(enough, allowed):
            return "right_mean"
    return "devices_differ"


def describe_use(case: Case, names: list[str]) -> list[Fact]:
    """Say if other results depend on these leaves, as they do on parameters."""
    if not names:
        return []
    uses = case.reference.find_uses(names, case.update.arguments)
    return [fact(use, leaves) for use, leaves in uses.items() if leaves]


def describe_draws(case: Case) -> list[Fact]:
    """Say if all devices draw the same random numbers.

    Then the step makes of the same examples on every device what one device makes of
    them.
    """
    if not case.parts or not case.random_leaves:
        return []
    b = case.update.examples // case.N
    got, right = case.rerun(np.tile(np.arange(b), case.N))
    tells = case.distances(right, case.parts[0])
    if tells and not case.distances(got, case.parts[0]):
        return [fact("same_draws")]
    return []


def describe_factor(case: Case) -> list[Fact]:
    """Say if the changes are N, N * N or 1 / N times the reference's."""
    ratios = []
    for name in case.fractions:
        if case.update.values[name].size > 1:
            ratio, error = case.change(name)
            if error < PREDICTS * abs(ratio):
                ratios.append(ratio)
    return describe_ratios(case, ratios)


def describe_ratios(case: Case, ratios: list[float]) -> list[Fact]:
    """Say if all ratios are N, N * N or 1 / N, or its square in Adam's moments."""
    wrong = np.array([ratio for ratio in ratios if abs(ratio - 1) > PREDICTS])
    powers = {"times_N": case.N, "times_N_squared": case.N**2, "times_1_N": 1 / case.N}
    for name, factor in powers.items():
        is_factor = abs(wrong / factor - 1) < PREDICTS
        is_square = abs(wrong / factor**2 - 1) < PREDICTS
        if is_factor.any() and (is_factor | is_square).all():
            ratio = wrong[is_factor][0]
            facts = [fact(name, case.wrong(), ratio=ratio, N=case.N)]
            if checks_vma(case):
                facts.append(fact("check_vma"))
            return facts
    return []


def checks_vma(case: Case) -> bool:
    """Return True if the step has a `shard_map` with `check_vma=True`."""
    # A Python function around compiled ones need not be traceable.
    with contextlib.suppress(Exception):
        arguments = step_arguments(*case.place(case.update))
        program = jax.make_jaxpr(case.comparison.step)(*arguments)
        operations = equations(program.jaxpr)
        return any(
            operation.params.get("check_vma") is True for operation in operations
        )
    return False


def describe_parts(case: Case) -> list[Fact]:
    """Say what is made of the devices' own results: their mean, or the first."""
    if not case.parts:
        return []
    names: dict[str, list[str]] = {}
    for name in case.clear:
        # Each part draws as the first device does, so a leaf that depends on random
        # numbers shows nothing.
        if name in case.random_leaves:
            continue
        values = [part[name] for part in case.parts]
        if name in case.fractions and case.is_near(name, [np.mean(values, 0)]):
            names.setdefault("mean_of_parts", []).append(name)
        elif case.is_near(name, values[:1]):
            names.setdefault("first_part", []).append(name)
    facts = [fact(what, leaves) for what, leaves in names.items()]
    of_parts = names.get("mean_of_parts", []) + names.get("first_part", [])
    return facts + describe_use(case, of_parts)


def describe_examples(case: Case) -> list[Fact]:
    """Say how much the examples count: all N times as much, some more, or some not."""
    B = case.update.examples
    right = case.update.values
    arrays = [name for name in case.fractions if right[name].size > 1]
    if not 2 <= B <= MOST_EXAMPLES:
        return []
    influences = measure_influence(case, range(B), arrays)
    if not influences:
        return []
    best = influences[min(influences, key=lambda name: influences[name][1])][0]
    ends = [int(np.nanargmin(best)), int(np.nanargmax(best))]
    low, high = best[ends]
    if high - low < 3 * ALIKE * abs(high):
        medians = [float(np.nanmedian(counts)) for counts, _ in influences.values()]
        return describe_ratios(case, medians)
    if low < -ALIKE * high or is_masked(case, ends, best[ends]):
        return []
    light, heavy = [
        few(np.flatnonzero(np.abs(best - end) < ALIKE * high)) for end in (low, high)
    ]
    if low < ALIKE * high:
        return [fact("no_influence", light=light)]
    return [fact("unequal", light=light, heavy=heavy, ratio=high / low)]


def is_masked(case: Case, ends: list[int], counts: np.ndarray) -> bool:
    """Return True if other random numbers make other examples count."""
    if not case.random_leaves:
        return False
    reseeded = Case(case.comparison, case.other_seed)
    influence = measure_influence(reseeded, ends, list(case.wrong()))
    return not any(np.allclose(counts, x, ALIKE, ALIKE) for x, _ in influence.values())


def measure_influence(
    case: Case, examples: Sequence[int], names: list[str]
) -> dict[str, tuple[np.ndarray, float]]:
    """Measure how far the step moves when an example is replaced.

    Returns:
        By leaf, a number for each example: its move as a multiple of the reference's,
        NaN if the reference hardly moves; and the largest relative error. A leaf is
        there only if its moves are multiples and add up to the move when all examples
        are replaced: under clipping and Adam they don't.
    """
    B = case.update.examples
    swapped = np.roll(np.arange(B), B // 2)  # the example that takes the place of each
    reruns = []
    for example in examples:
        index = np.arange(B)
        index[example] = swapped[example]
        reruns.append(case.rerun(index))
    together = case.rerun(swapped)[0] if len(examples) == B else None
    results = {}
    for name in names:
        first = case.got[name][0]
        enough = 2 * CLEAR * case.update.allowed[name]
        counts = []
        errors = []
        moves = []
        for got, right in reruns:
            moved = got[name] - first
            wanted = right[name] - case.update.values[name]
            moves.append(moved)
            if distance(wanted) > enough:
                count, error = multiple(moved, wanted)
                counts.append(count)
                errors.append(error)
            else:
                counts.append(np.nan)
        is_sum = True
        if together is not None:
            size = sum(distance(moved) for moved in moves)
            rest = distance(together[name] - first, sum(moves))
            is_sum = rest <= 2 * PREDICTS * size
        if is_sum and len(errors) > len(counts) / 2 and max(errors) < ALIKE:
            results[name] = (np.array(counts), max(errors))
    return results


def describe_metrics(case: Case) -> list[Fact]:
    """Return the facts about wrong metrics, if the state is as in the reference."""
    facts = describe_nan(case, metrics=True)
    if facts or case.wrong():
        return facts
    leaves_by_fact: dict[tuple[str, float], list[str]] = {}
    for name in case.wrong(metrics=True):
        explanation = compare_metric(case, name)
        if explanation:
            leaves_by_fact.setdefault(explanation, []).append(name)
    for (name, ratio), leaves in leaves_by_fact.items():
        facts.append(fact(name, leaves, ratio=ratio))
    return facts


def compare_metric(case: Case, name: str) -> tuple[str, float] | None:
    """Return the fact that predicts a wrong metric, and its factor."""
    if case.differs_between_devices(name):
        return "metric_differs", 1
    error, allowed = case.errors[name]
    if error <= 4 * allowed:
        return None
    right = case.update.values[name]
    parts = [part[name] for part in case.parts]
    # A sum of equal means is also N times the mean: the first prediction is taken.
    guesses: list[tuple[str, float, Any]] = [
        ("metric_times", case.N, right * case.N),
        ("metric_times", case.N**2, right * case.N**2),
    ]
    guesses += [("metric_part", 1, part) for part in parts]
    if parts:
        guesses.append(("metric_mean", 1, np.mean(parts, 0)))
        guesses.append(("metric_sum", 1, np.sum(parts, 0)))
    guesses.append(("metric_times", 1 / case.N, right / case.N))
    for name_of_fact, factor, predicted in guesses:
        if case.is_near(name, [predicted]):
            return name_of_fact, factor
    return None


def find_fixed_key(cases: list[Case]) -> list[Fact]:
    """Say if the second update draws the random numbers of the first.

    Raises:
        CheckError: If that can't be told.
    """
    case = cases[0]
    if not case.random_leaves:
        raise CheckError("no result depends on a key")
    if len(cases) == 1:
        raise CheckError("it takes updates=2")
    # The first update once more, with the keys and counters of the second.
    returned = case.call(*case.place(case.update))["state"]
    state, batch, *key = case.place(case.update._replace(key=cases[1].update.key))
    state = jax.tree.map(
        lambda first, second: first if trees.is_float(first) else second,
        state,
        returned,
    )
    again = case.read(case.call(state, batch, *key))
    if is_redrawn(case, again):
        return []
    one_key = bool(case.update.key) and case.update.key[0] is cases[1].update.key[0]
    is_wrong = any(case.wrong() or case.wrong(metrics=True) for case in cases)
    if one_key and not is_wrong:
        raise CheckError(
            "every update was given the same key. If your loop passes new ones, give "
            "key=lambda update: jax.random.fold_in(key, update). If not, let the step "
            "fold the update's number into it",
            "not compared",
        )
    return [fact("same_again")]


def is_redrawn(case: Case, again: dict[str, list[np.ndarray]]) -> bool:
    """Return True if the first update's second run drew other random numbers.

    A learning rate that follows a schedule moves the state and whatever depends on it,
    and draws nothing. So metrics that stay equal, or a move of the state that is a
    multiple of the first, show that the numbers are the same.
    """
    metrics = []
    moves = []
    others = []
    for name, distance_moved in case.random_leaves.items():
        first = np.stack(case.got[name])
        second = np.stack(again[name])
        differs = distance(second, first) > PREDICTS * distance_moved
        if case.reference.is_metric(name):
            metrics.append(differs)
            continue
        old = case.update.old[name]
        right = case.update.values[name]
        _, rest = multiple(case.other_seed.values[name] - old, right - old)
        if right.size > 1 and rest > 0.1:  # other numbers would make no multiple
            ratio, error = multiple(second - old, first - old)
            moves.append(error > PREDICTS * abs(ratio))
        else:
            others.append(differs)
    if metrics and not any(metrics):
        return False
    if moves:
        return any(moves)
    return any(metrics) or any(others)


def find_unsplit_work(cases: list[Case]) -> list[Fact]:
    """Say if a device makes more than its part of the operations, as compiled.

    Raises:
        CheckError: If that can't be told.
    """
    case = cases[0]
    reference = case.reference
    update = case.update
    if case.N == 1 or not update.examples or update.examples % case.N:
        raise CheckError("there is no batch that is split over several devices")
    if places_arrays(case):
        raise CheckError(
            "the function around your step places arrays, and the compiler doesn't "
            "count that"
        )
    rows = update.rows(np.arange(update.examples // case.N))
    device = reference.jitted_device.lower(0, update.state, rows, *update.key)
    whole = reference.jitted.lower(*update.arguments)
    total = whole.compile()  # which its call has compiled
    loops = find_loops(case.compiled)
    if loops != find_loops(total) and loops != find_loops(device.compile()):
        raise CheckError(
            "the compiler counts a loop once, and the loops of step and reference "
            "differ"
        )
    all_of_it = count_flops(total)
    if not all_of_it:
        raise CheckError("the compiler counts no operations")
    fraction = count_flops(device) / count_flops(whole)  # before it's compiled
    ratio = count_flops(case.compiled) / all_of_it
    # Some of the work is the same for any batch, such as the update of the state.
    same_for_all = (fraction - 1 / case.N) / (1 - 1 / case.N)
    most = max(MOST_WORK * fraction, fraction + 3 * same_for_all)
    if not 0 < most < 0.9:
        raise CheckError("too little of the work depends on the number of examples")
    if ratio < most:
        return []
    return [fact("whole_work", ratio=ratio, part=fraction)]


def places_arrays(case: Case) -> bool:
    """Return True if a plain function around the step moves arrays between devices."""
    step = case.comparison.step
    if hasattr(step, "lower"):
        return False
    traced = jax.make_jaxpr(step)(*step_arguments(*case.place(case.update)))
    for equation in traced.jaxpr.eqns:
        places = equation.params.get("devices", ())
        is_placed = any(place is not None for place in places)
        if equation.primitive.name == "device_put" and is_placed:
            return True
    return False


def find_loops(program: Any) -> list[str]:
    """Return the loops of a compiled program, and how often each runs."""
    loops = re.findall(r' while\(|"known_trip_count":\{"n":"\d+"\}', program.as_text())
    return sorted(loops)


def count_flops(program: Any) -> float:
    """Return the floating-point operations of a compiled program, loops once."""
    return (program.cost_analysis() or {}).get("flops", 0)


def find_exchange(case: Case) -> str:
    """Say what the devices exchange in an update, as far as the compiled step shows."""
    with contextlib.suppress(Exception):  # a step need not be traceable as a whole
        return describe_exchange(instructions(case.compiled.as_text()))
    return ""
