"""Make the checks: state, metrics, random numbers, and how the work is split.

The last two look for what equal results don't show.
"""

import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.experiments import explain_metrics, explain_state
from pmapdp.verify.mistakes import Fact
from pmapdp.verify.report import Check, CheckError
from pmapdp.verify.step_update import Copies, StepUpdate
from pmapdp.verify.tolerances import PREDICTS
from pmapdp.verify.trees import distance, fit_factor

# Other random numbers leave so much of a leaf's change that is no multiple of it.
NO_MULTIPLE = 0.1
# A device that makes this many times its part of the operations isn't split: twice the
# work is more. Of work that is the same for any batch, three times is allowed.
MOST_WORK = 1.75
MOST_FIXED_WORK = 3


def make_checks(updates: list[StepUpdate]) -> list[Check]:
    """Compare the results, and look at keys and work."""
    results = [
        check_results(updates, metrics=False),
        check_results(updates, metrics=True),
    ]
    further = [
        make_check("random numbers advance", check_random_numbers, updates),
        make_check("the work is split", check_work, updates),
    ]
    if all(check.status != "FAILED" for check in further):
        return results + further
    # Then the results look like mistakes that nobody made.
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
    """Make a check that fails if there are facts."""
    N = updates[0].N
    try:
        facts = find_facts(updates)
    except Exception as error:  # the step may be correct all the same
        return Check.from_error(name, N, error, "not checked")
    return Check(name, "FAILED" if facts else "passed", N, facts=facts)


def check_results(updates: list[StepUpdate], metrics: bool) -> Check:
    """Check that the state, or the metrics, equal the reference's in every update."""
    name = "same metrics" if metrics else "same update"
    largest: dict[str, tuple[float, float]] = {}  # error and tolerance of each leaf
    for update in updates:
        if update.wrong(metrics):
            return describe_difference(name, update, updates[0], metrics)
        for leaf in update.part(metrics):
            error = (leaf.error, leaf.expected.allowed)
            largest[leaf.name] = max(error, largest.get(leaf.name, error))
    if largest:
        return Check(name, "passed", updates[0].N, leaves=largest)
    part = "metrics" if metrics else "state"
    why = f"the step returns no {part} that can be compared"
    return Check(name, "not checked", updates[0].N, why)


def describe_difference(
    name: str, update: StepUpdate, first: StepUpdate, metrics: bool
) -> Check:
    """Say which leaves differ, from which update on, and what is known about that."""
    wrong = update.wrong(metrics)
    compared = len(update.part(metrics))
    number = update.expected.number + 1
    sentence = f"{len(wrong)} of {compared} leaves differ, from update {number} on"
    examples = update.expected.examples
    if examples != first.expected.examples:
        sentence += f", the only one with {examples} examples"
    if update.N > 1:
        differ = any(leaf.differs_between_devices() for leaf in wrong)
        values = "different values" if differ else "the same values"
        sentence += f"; the devices hold {values}"
    facts = explain_metrics(update) if metrics else explain_state(update)
    if metrics and update.wrong() and not facts:
        sentence += "; the state differs, too, so look at that first"
    return Check(
        name=name,
        status="FAILED",
        devices=update.N,
        sentence=f"{sentence}.",
        facts=facts,
        leaves={leaf.name: (leaf.error, leaf.expected.allowed) for leaf in wrong},
        update=number,
    )


def check_random_numbers(updates: list[StepUpdate]) -> list[Fact]:
    """Say if the second update draws the random numbers of the first.

    Raises:
        CheckError: If that can't be told.
    """
    first = updates[0]
    if not first.random_leaves:
        raise CheckError("no result depends on a key")
    if len(updates) == 1:
        raise CheckError("it takes updates=2")
    first_key = first.expected.key
    second_key = updates[1].expected.key
    # The first update once more, with the keys and counters of the second.
    step = first.step
    returned = step.call(*step.place(*first.expected.arguments))["state"]
    arguments = first.expected._replace(key=second_key).arguments
    state, *batch_and_key = step.place(*arguments)
    state = jax.tree.map(
        lambda before, after: before if trees.is_float(before) else after,
        state,
        returned,
    )
    again = step.read(step.call(state, *batch_and_key), first.expected.leaves)
    if draws_new_numbers(first, again):
        return []
    has_one_key = first_key is not None and first_key is second_key
    is_wrong = any(update.wrong() or update.wrong(metrics=True) for update in updates)
    if has_one_key and not is_wrong:
        raise CheckError(
            "every update was given the same key. If your loop passes new ones, give "
            "key=lambda update: jax.random.fold_in(key, update). If not, let the step "
            "fold the update's number into it",
            "not compared",
        )
    sentence = "The second update draws the random numbers of the first again."
    return [Fact(sentence, "key stands still")]


def draws_new_numbers(update: StepUpdate, again: Copies) -> bool:
    """Return True if the first update's second run drew other random numbers.

    A learning rate that follows a schedule moves the state and whatever depends on it,
    and draws nothing. So metrics that stay equal, or a move of the state that is a
    multiple of the first, show that the numbers are the same.
    """
    metrics_differ = []
    state_differs = []
    no_multiples = []
    for name, random_difference in update.random_leaves.items():
        leaf = update.leaves[name]
        old = leaf.expected.old
        first = np.stack(leaf.copies)
        second = np.stack(again[name])
        differs = distance(second, first) > PREDICTS * random_difference
        if leaf.expected.is_metric:
            metrics_differ.append(differs)
            continue
        reseeded = update.reseeded.leaves[name].value
        _, rest = fit_factor(reseeded - old, leaf.expected.value - old)
        if leaf.is_array and rest > NO_MULTIPLE:
            ratio, error = fit_factor(second - old, first - old)
            no_multiples.append(error > PREDICTS * abs(ratio))
        else:
            state_differs.append(differs)
    if metrics_differ and not any(metrics_differ):
        return False
    if no_multiples:
        return any(no_multiples)
    return any(metrics_differ) or any(state_differs)


def check_work(updates: list[StepUpdate]) -> list[Fact]:
    """Say if a device makes more than its part of the operations, as compiled.

    Raises:
        CheckError: If that can't be told.
    """
    update = updates[0]
    expected = update.expected
    N = update.N
    if N == 1 or not expected.examples or expected.examples % N:
        raise CheckError("there is no batch that is split over several devices")
    if places_arrays(update):
        raise CheckError(
            "the function around your step places arrays, and the compiler doesn't "
            "count that"
        )
    rows = expected.select_examples(np.arange(expected.examples // N))
    local_arguments = (expected.state, rows, expected.key)
    local = update.reference.jit_alone.lower(0, *local_arguments)
    whole = update.reference.jit_batch.lower(*expected.arguments)
    compiled_whole = whole.compile()  # it has been compiled by its call
    loops = find_loops(update.compiled)
    if loops != find_loops(compiled_whole) and loops != find_loops(local.compile()):
        raise CheckError(
            "the compiler counts a loop once, and the loops of step and reference "
            "differ"
        )
    whole_work = count_operations(compiled_whole)
    if not whole_work:
        raise CheckError("the compiler counts no operations")
    # Both are counted before they're compiled, so that none of them is fused.
    part = count_operations(local) / count_operations(whole)
    # Some of the work is the same for any batch, such as the update of the state.
    fixed_work = (part - 1 / N) / (1 - 1 / N)
    most = max(MOST_WORK * part, part + MOST_FIXED_WORK * fixed_work)
    if not 0 < most < 0.9:
        raise CheckError("too little of the work depends on the number of examples")
    work = count_operations(update.compiled) / whole_work
    if work < most:
        return []
    sentence = (
        f"The busiest device makes {work:.0%} of the operations that the whole batch "
        f"takes on one device. Its part alone would take {part:.0%}."
    )
    return [Fact(sentence, "every device computes everything")]


def places_arrays(update: StepUpdate) -> bool:
    """Return True if a plain function around the step moves arrays between devices."""
    function = update.step.function
    if hasattr(function, "lower"):
        return False
    arguments = update.step.place(*update.expected.arguments)
    for equation in jax.make_jaxpr(function)(*arguments).jaxpr.eqns:
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
    """Return the floating-point operations of a program, those of a loop once."""
    return (program.cost_analysis() or {}).get("flops", 0)
