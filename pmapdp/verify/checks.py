"""Check the step's state, its metrics, its random numbers, and how its work is split.

State and metrics are compared with the reference's. Random numbers and work need checks
of their own, because a step may return the reference's results although it draws the
same numbers in every update, or computes the whole batch on every device.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.experiments import explain_metrics, explain_state
from pmapdp.verify.mistakes import Fact
from pmapdp.verify.report import Check, CheckError
from pmapdp.verify.step_update import Copies, Output, StepUpdate
from pmapdp.verify.thresholds import (
    MAX_FIXED_WORK,
    MAX_WORK,
    PREDICTION_TOLERANCE,
    ROUGH_TOLERANCE,
)
from pmapdp.verify.trees import distance, fit_factor

CHECK_NAMES: dict[Output, str] = {"state": "same update", "metrics": "same metrics"}


def make_checks(updates: list[StepUpdate]) -> list[Check]:
    """Make all checks. What a failed one explains is not explained twice."""
    results = [check_results(updates, "state"), check_results(updates, "metrics")]
    further = [
        make_check("random numbers advance", check_random_numbers, updates),
        make_check("the work is split", check_work, updates),
    ]
    if all(check.status != "FAILED" for check in further):
        return results + further
    # Results that follow from one of these mistakes look like another, that nobody
    # made.
    follows = "This may follow from what failed above, so correct that first."
    for number, check in enumerate(results):
        if check.status == "FAILED":
            results[number] = check._replace(sentence=follows, facts=())
    return further + results


def make_check(
    name: str,
    find_facts: Callable[[list[StepUpdate]], list[Fact]],
    updates: list[StepUpdate],
) -> Check:
    """Make a check that fails if `find_facts` returns any facts."""
    N = updates[0].N
    try:
        facts = find_facts(updates)
    except Exception as error:  # the step may be correct all the same
        return Check.from_error(name, N, error, "not checked")
    if facts:
        return Check(name, "FAILED", N, facts=facts)
    return Check(name, "passed", N)


def check_results(updates: list[StepUpdate], output: Output) -> Check:
    """Check that the state, or the metrics, equal the reference's in every update."""
    wrong_updates = [update for update in updates if update.wrong_leaves(output)]
    if wrong_updates:
        return describe_difference(wrong_updates, updates, output)
    largest: dict[str, tuple[float, float]] = {}  # error and tolerance of each leaf
    for update in updates:
        for leaf in update.leaves_of(output):
            error = (leaf.error, leaf.expected.allowed)
            largest[leaf.name] = max(error, largest.get(leaf.name, error))
    N = updates[0].N
    if largest:
        return Check(CHECK_NAMES[output], "passed", N, leaves=largest)
    why = f"the step returns no {output} that can be compared"
    return Check(CHECK_NAMES[output], "not checked", N, why)


def describe_difference(
    wrong_updates: list[StepUpdate], updates: list[StepUpdate], output: Output
) -> Check:
    """Say which leaves differ, from which update on, and what experiments show."""
    first = wrong_updates[0]
    wrong = first.wrong_leaves(output)
    compared = len(first.leaves_of(output))
    number = first.expected.number + 1
    sentence = f"{len(wrong)} of {compared} leaves differ, from update {number} on"
    examples = first.expected.examples
    if examples != updates[0].expected.examples:
        sentence += f", the only one with {examples} examples"
    worst = choose_update(wrong_updates, output)
    if worst is not first:
        wrong = worst.wrong_leaves(output)
        number = worst.expected.number + 1
        sentence += f"; {len(wrong)} differ in update {number}"
    if worst.N > 1:
        values = "the same values"
        if any(leaf.differs_between_devices() for leaf in wrong):
            values = "different values"
        sentence += f"; the devices hold {values}"
    if output == "state":
        facts = explain_state(worst)
    else:
        facts = explain_metrics(worst)
        if worst.wrong_leaves("state") and not facts:
            sentence += "; the state also differs, so look at that first"
    return Check(
        name=CHECK_NAMES[output],
        status="FAILED",
        devices=worst.N,
        sentence=f"{sentence}.",
        facts=facts,
        leaves={leaf.name: (leaf.error, leaf.expected.allowed) for leaf in wrong},
        update=number,
    )


def choose_update(wrong_updates: list[StepUpdate], output: Output) -> StepUpdate:
    """Return the update for the experiments, which is one with the most wrong leaves.

    Micro-batches are added up in one update, and only the next one makes the parameters
    wrong. So of two such updates, it's the one whose leaves were correct before.
    """
    names_before = {leaf.name for leaf in wrong_updates[0].wrong_leaves(output)}

    def rank(update: StepUpdate) -> tuple[int, int]:
        names = {leaf.name for leaf in update.wrong_leaves(output)}
        return len(names), len(names - names_before)

    return max(wrong_updates, key=rank)


def check_random_numbers(updates: list[StepUpdate]) -> list[Fact]:
    """Say if the second update draws the random numbers of the first again.

    Raises:
        CheckError: The step gives no way to tell.
    """
    first = updates[0]
    if not first.random_leaves:
        raise CheckError("no result depends on a key")
    if len(updates) == 1:
        raise CheckError("it takes updates=2")
    for copies in rerun_with_later_keys(updates):
        if draws_new_numbers(first, copies):
            return []
    first_key = first.expected.key
    has_one_key = first_key is not None and first_key is updates[1].expected.key
    if has_one_key and not any(update.is_wrong() for update in updates):
        raise CheckError(
            "every update was given the same key. If your loop passes new ones, give "
            "key=lambda update: jax.random.fold_in(key, update). If not, let the step "
            "fold the update's number into it",
            "not compared",
        )
    sentence = "The second update draws the random numbers of the first again."
    return [Fact(sentence, "key stands still")]


def rerun_with_later_keys(updates: list[StepUpdate]) -> Iterator[Copies]:
    """Run the first update again, with the keys and counters of each later one.

    A few random bits may be the same by chance, but hardly in all of these runs.
    """
    first = updates[0]
    step = first.step
    returned = step.call(*step.place(*first.expected.arguments))
    for later in updates[1:]:
        arguments = first.expected._replace(key=later.expected.key).arguments
        state, *batch_and_key = step.place(*arguments)
        state = jax.tree.map(advance_counter, state, returned["state"])
        returned = step.call(state, *batch_and_key)
        yield step.read(returned, first.expected.leaves)


def advance_counter(before: Any, after: Any) -> Any:
    """Return a key or a counter as the step returned it, and floats as they were."""
    if trees.is_float(before):
        return before
    return after


def draws_new_numbers(update: StepUpdate, again: Copies) -> bool:
    """Return True if the first update's second run drew other random numbers.

    A learning rate that follows a schedule moves the state and whatever depends on it,
    without drawing anything. Two things show that the numbers are the same: metrics
    that stay equal, and a change of the state that is a multiple of the first run's.
    """
    # True for each random leaf that shows other random numbers.
    metrics = []
    arrays = []
    numbers = []
    for name, random_difference in update.random_leaves.items():
        leaf = update.leaves[name]
        old = leaf.expected.old
        first = np.stack(leaf.copies)
        second = np.stack(again[name])
        differs = distance(second, first) > PREDICTION_TOLERANCE * random_difference
        if leaf.expected.is_metric:
            metrics.append(differs)
            continue
        # A multiple says something only if other random numbers give no multiple.
        reseeded = update.reseeded.leaves[name].value
        _, residual = fit_factor(reseeded - old, leaf.expected.value - old)
        if leaf.is_array and residual > ROUGH_TOLERANCE:
            ratio, error = fit_factor(second - old, first - old)
            arrays.append(error > PREDICTION_TOLERANCE * abs(ratio))
        else:
            numbers.append(differs)
    if metrics and not any(metrics):
        return False
    if arrays:
        return any(arrays)
    return any(metrics) or any(numbers)


def check_work(updates: list[StepUpdate]) -> list[Fact]:
    """Return a fact if the busiest device computes more than its part of the work.

    Raises:
        CheckError: The compiler's counts don't tell.
    """
    update = updates[0]
    N = update.N
    examples = update.expected.examples
    if N == 1 or not examples or examples % N:
        raise CheckError("there is no batch that is split over several devices")
    if places_arrays(update):
        raise CheckError(
            "the function around your step places arrays, and the compiler doesn't "
            "count that"
        )
    work, part_work = measure_work(update)
    limit = limit_work(part_work, N)
    if not 0 < limit < 1:  # a device that makes everything makes at least 1
        raise CheckError("too little of the work depends on the number of examples")
    if work < limit:
        return []
    sentence = (
        f"The busiest device makes {work:.0%} of the operations that the whole batch "
        f"takes on one device. Its own part would take {part_work:.0%}."
    )
    return [Fact(sentence, "every device computes everything")]


def measure_work(update: StepUpdate) -> tuple[float, float]:
    """Return the busiest device's work, and how much its part of the batch would take.

    Both are fractions of the operations that the whole batch takes on one device.

    Raises:
        CheckError: The compiler's counts don't tell.
    """
    expected = update.expected
    reference = update.reference
    rows = expected.select_examples(np.arange(expected.examples // update.N))
    on_rows = reference.jit_device.lower(0, expected.state, rows, expected.key)
    whole = reference.jit_batch.lower(*expected.arguments)
    compiled_whole = whole.compile()  # from the cache, because it has run
    loops = find_loops(update.compiled)
    if loops != find_loops(compiled_whole) and loops != find_loops(on_rows.compile()):
        raise CheckError(
            "the compiler counts a loop once, and the loops of step and reference "
            "differ"
        )
    whole_work = count_operations(compiled_whole)
    if not whole_work:
        raise CheckError("the compiler counts no operations")
    work = count_operations(update.compiled) / whole_work
    # Both are counted before they're compiled, so that none of them is fused.
    part_work = count_operations(on_rows) / count_operations(whole)
    # The products of all pairs of examples take a device 1/N, and its examples' own
    # pairs only 1/N².
    return work, max(part_work, 1 / update.N)


def limit_work(part_work: float, N: int) -> float:
    """Return how much work a device may make, if its examples alone take `part_work`.

    Both are fractions of one device's work on the whole batch.
    """
    fixed_work = (part_work - 1 / N) / (1 - 1 / N)  # the same for any batch
    return max(MAX_WORK * part_work, part_work + MAX_FIXED_WORK * fixed_work)


def places_arrays(update: StepUpdate) -> bool:
    """Return True if a plain function around the step moves arrays between devices."""
    if hasattr(update.step.function, "lower"):
        return False
    for equation in update.jaxpr.eqns:
        devices = equation.params.get("devices", ())
        is_placed = any(device is not None for device in devices)
        if equation.primitive.name == "device_put" and is_placed:
            return True
    return False


def find_loops(compiled: Any) -> list[str]:
    """Return the loops of a compiled program, and how often each runs."""
    pattern = r' while\(|"known_trip_count":\{"n":"\d+"\}'
    return sorted(re.findall(pattern, compiled.as_text()))


def count_operations(program: Any) -> float:
    """Count the floating-point operations of a program. A loop's body counts once."""
    return (program.cost_analysis() or {}).get("flops", 0)
