"""Find the facts behind a difference, by experiments with the step and the reference.

Each experiment predicts the step's result: for example, that each device holds the
reference's result on its own examples, or that a change is N times as large. If the
prediction holds, it's a fact, which is true whatever the program means by it.

`explain_state` runs the experiments on a wrong state one after the other, until one
shows something. `explain_metrics` does the same for each wrong metric.
"""

import contextlib
from collections.abc import Iterator, Sequence

import numpy as np

from pmapdp.verify.influence import (
    are_equal,
    are_zero,
    compare_examples,
    find_used_leaves,
    measure_weights,
)
from pmapdp.verify.mistakes import Fact
from pmapdp.verify.step_update import ComparedLeaf, Output, StepUpdate
from pmapdp.verify.thresholds import (
    MAX_EXAMPLES,
    PREDICTION_TOLERANCE,
    ROUGH_TOLERANCE,
)
from pmapdp.verify.tolerances import iterate_equations
from pmapdp.verify.trees import Leaves, distance, first_names


def explain_state(update: StepUpdate) -> list[Fact]:
    """Return the facts about a wrong state from the first experiment that shows any."""
    facts = find_nan(update, "state")
    if facts or not any(leaf.is_clearly_wrong for leaf in update.wrong_leaves("state")):
        return facts
    experiments = (
        compare_devices,
        compare_random_numbers,
        find_factor,
        compare_with_local_results,
        weigh_examples,
        describe_change,
    )
    for experiment in experiments:
        facts = list(experiment(update))
        if facts:
            break
    return facts


def find_nan(update: StepUpdate, output: Output) -> list[Fact]:
    """Say which devices hold NaN, and if their own examples cause it."""
    for leaf in update.wrong_leaves(output):
        devices = devices_with_nan(leaf.copies)
        if not devices:
            continue
        number = update.expected.number + 1
        text = f"NaN on device {first_names(devices)}, from update {number} on"
        facts = describe_leaves([leaf.name], text)
        local = devices_with_nan(update.local_values(leaf))
        if local:
            sentence = (
                f"On the examples of device {first_names(local)} alone, the reference "
                "is also NaN."
            )
            facts.append(Fact(sentence, "NaN on one device"))
        return facts  # the other leaves' NaN came from this one's
    return []


def devices_with_nan(arrays: Sequence[np.ndarray]) -> list[int]:
    """Return the numbers of the devices whose arrays hold NaN."""
    return [device for device, array in enumerate(arrays) if np.isnan(array).any()]


def compare_devices(update: StepUpdate) -> Iterator[Fact]:
    """Say what the devices hold, if they hold different values."""
    local = []
    correct_mean = []
    unexplained = []
    for leaf in update.wrong_leaves("state"):
        if not leaf.differs_between_devices():
            continue
        if leaf.is_predicted(update.local_values(leaf)):
            local.append(leaf.name)
        elif has_correct_mean(leaf, update.N):
            correct_mean.append(leaf.name)
        else:
            unexplained.append(leaf.name)
    yield from describe_leaves(
        local, "each device holds the reference's result on its own examples"
    )
    yield from describe_leaves(
        correct_mean,
        "the devices' values differ, and their mean is the reference's value",
    )
    use_facts = list(describe_use(update, local + correct_mean, "no all-reduce"))
    mistake = "drift"
    if any(fact.mistake == "no all-reduce" for fact in use_facts):
        mistake = ""  # parameters without an all-reduce make other leaves differ, too
    yield from describe_leaves(
        unexplained,
        "the devices hold different values, which aren't the results on their own "
        "examples",
        mistake,
    )
    yield from use_facts


def describe_leaves(names: list[str], sentence: str, mistake: str = "") -> list[Fact]:
    """Return a fact about these leaves, or none if there are none of them."""
    if not names:
        return []
    return [Fact(f"{first_names(names)}: {sentence}.", mistake)]


def has_correct_mean(leaf: ComparedLeaf, N: int) -> bool:
    """Return True if the mean over all devices is the reference's value.

    Without an all-reduce, that holds for Adam's first moments, and not for parameters.
    """
    if leaf.expected.kind != "close" or len(leaf.copies) != N:
        return False
    residual = distance(np.mean(leaf.copies, 0), leaf.expected.value)
    return leaf.is_clearly_wrong and leaf.is_explained(residual)


def describe_use(
    update: StepUpdate, names: list[str], mistake_if_used: str
) -> Iterator[Fact]:
    """Say which of these leaves other results depend on, as on parameters.

    Statistics, on which nothing depends, may differ on purpose.
    """
    state = [leaf for leaf in update.expected.leaves.values() if not leaf.is_metric]
    floats = [leaf for leaf in state if np.issubdtype(leaf.value.dtype, np.inexact)]
    leaves = [leaf.name for leaf in floats if leaf.name in names]
    other_leaves = [leaf for leaf in floats if leaf.name not in names]
    has_other_array = any(leaf.value.size > 1 for leaf in other_leaves)
    if not leaves:
        return
    updates = [update.expected]
    these_updates = "this update"
    if update.expected.previous:  # one update adds up what the next one uses
        updates.append(update.expected.previous)
        these_updates = "this update and the one before"
    used, unused = find_used_leaves(update.reference, leaves, updates)
    if not used and not has_other_array:
        # The parameter is all that the state has, so nothing else could depend on it.
        yield Fact(
            f"The state holds no other array of floats than {first_names(leaves)}.",
            mistake_if_used,
        )
        return
    if used:
        yield Fact(f"Other results depend on {first_names(used)}.", mistake_if_used)
    if unused:
        yield Fact(
            f"No other result of {these_updates} depends on {first_names(unused)}.",
            "local statistics",
        )


def compare_random_numbers(update: StepUpdate) -> Iterator[Fact]:
    """Give all devices the same examples, and see if they draw the same numbers.

    If they do, the new state is what one device makes of these examples.
    """
    if not update.local_results or not update.random_leaves:
        return
    b = update.expected.examples // update.N
    same_examples = np.tile(np.arange(b), update.N)
    step_result, reference_result = update.rerun(same_examples)
    one_device = update.local_results[0]
    if not state_differs(update, reference_result, one_device):
        return  # random numbers change too little to show anything
    if not state_differs(update, step_result, one_device):
        yield Fact(
            "If every device gets the same examples, the new state is what one device "
            "makes of them, so all draw the same random numbers.",
            "same mask",
        )


def state_differs(update: StepUpdate, first: Leaves, second: Leaves) -> bool:
    """Return True if two results differ in the state.

    Metrics don't count, because one device's sums are smaller than all devices' sums.
    """
    names = update.find_differences(first, second)
    return any(not update.leaves[name].expected.is_metric for name in names)


def find_factor(update: StepUpdate) -> Iterator[Fact]:
    """Say if the state changes by N, N² or 1/N times the reference's change."""
    ratios = {}
    for leaf in update.wrong_arrays():
        ratio, error = leaf.fit_change()
        if error < PREDICTION_TOLERANCE * abs(ratio):
            ratios[leaf.name] = ratio
    return compare_ratios(update, ratios, "the change is {} times the reference's")


def weigh_examples(update: StepUpdate) -> Iterator[Fact]:
    """Say how much the examples count: all N times, some more than others, or not."""
    B = update.expected.examples
    weights = {}
    if 2 <= B <= MAX_EXAMPLES:
        weights = measure_weights(update, range(B), update.wrong_arrays())
    if not weights:
        return
    unmoved = [name for name in weights if are_zero(weights[name])]
    if unmoved:
        yield from describe_leaves(
            unmoved, "the examples of this update have no influence"
        )
        return
    most_exact = next(iter(weights.values()))
    if not are_equal(most_exact):
        yield from compare_examples(update, most_exact)
        return
    medians = {name: float(np.nanmedian(weights[name])) for name in weights}
    sentence = "each example counts {} times as much as in the reference"
    yield from compare_ratios(update, medians, sentence)


def compare_ratios(
    update: StepUpdate, ratios: dict[str, float], sentence: str
) -> Iterator[Fact]:
    """Say if all ratios are N, all are N², or all are 1/N.

    Adam's second moments are squares of the gradient, so their ratios are squared.
    """
    N = update.N
    wrong = {name: x for name, x in ratios.items() if abs(x - 1) > PREDICTION_TOLERANCE}
    mistakes = {N: "sum for mean", N**2: "", 1 / N: "averaged twice"}
    for factor, mistake in mistakes.items():
        names = [name for name in wrong if is_near(wrong[name], factor)]
        squares = [name for name in wrong if is_near(wrong[name], factor**2)]
        if not names or len(wrong) > len({*names, *squares}):
            continue
        is_added_up = factor > 1 and has_check_vma(update)
        if is_added_up:
            mistake = ""  # the second fact says which mistake it is
        times = sentence.format(f"{wrong[names[0]]:.6g}")
        yield from describe_leaves(names, f"{times}, on {N} devices", mistake)
        if is_added_up:
            yield Fact(
                "The step has a shard_map with check_vma=True, where jax.grad adds up "
                "the gradients of replicated parameters.",
                "check_vma",
            )
        return


def is_near(ratio: float, factor: float) -> bool:
    """Return True if a ratio is this factor within rounding."""
    return abs(ratio / factor - 1) < PREDICTION_TOLERANCE


def has_check_vma(update: StepUpdate) -> bool:
    """Return True if the step has a `shard_map` with `check_vma=True`."""
    # A plain function that calls compiled ones need not be traceable.
    with contextlib.suppress(Exception):
        for equation in iterate_equations(update.jaxpr):
            if equation.params.get("check_vma") is True:
                return True
    return False


def compare_with_local_results(update: StepUpdate) -> Iterator[Fact]:
    """Say which leaves are the mean of the devices' own results, or one of them."""
    if not update.local_results:
        return
    means = []
    first_device = []
    for leaf in update.wrong_leaves("state"):
        # All local results draw the first device's random numbers, so they predict
        # nothing for a leaf that depends on these.
        if not leaf.is_clearly_wrong or leaf.name in update.random_leaves:
            continue
        local_values = update.local_values(leaf)
        is_float = leaf.expected.kind == "close"
        if is_float and leaf.is_predicted([np.mean(local_values, 0)]):
            means.append(leaf.name)
        elif leaf.is_predicted(local_values[:1]):
            first_device.append(leaf.name)
    yield from describe_leaves(
        means, "the mean of the reference's results on each device's own examples"
    )
    yield from describe_leaves(
        first_device, "the reference's result on the first device's examples"
    )
    mistake = "no all-reduce"  # or one that leaves out the other devices
    if means:
        mistake = "mean of means"
    yield from describe_use(update, means + first_device, mistake)


def describe_change(update: StepUpdate) -> Iterator[Fact]:
    """Say how far the worst leaf moves, if no other experiment showed anything."""
    for leaf in update.wrong_arrays()[:1]:
        ratio, error = leaf.fit_change()
        if error < ROUGH_TOLERANCE * abs(ratio):
            yield Fact(
                f"{leaf.name}: the change is about {ratio:.3g} times the reference's, "
                f"with a relative error of {error / abs(ratio):.0e}."
            )


def explain_metrics(update: StepUpdate) -> list[Fact]:
    """Return the facts about wrong metrics.

    A wrong state makes metrics wrong, too, so they're explained only if it's correct.
    """
    facts = find_nan(update, "metrics")
    if facts or update.wrong_leaves("state"):
        return facts
    names_by_fact: dict[Fact, list[str]] = {}
    for leaf in update.wrong_leaves("metrics"):
        fact = explain_metric(update, leaf)
        if fact:
            names_by_fact.setdefault(fact, []).append(leaf.name)
    for fact, names in names_by_fact.items():
        facts += describe_leaves(names, fact.sentence, fact.mistake)
    return facts


def explain_metric(update: StepUpdate, leaf: ComparedLeaf) -> Fact | None:
    """Return a fact about a wrong metric, or None. The caller adds the name."""
    if leaf.differs_between_devices():
        return Fact("the devices hold different values", "one device's metrics")
    if leaf.is_clearly_wrong:
        for predicted, fact in predict_metric(update, leaf):
            if leaf.is_predicted([predicted]):
                return fact
    return None


def predict_metric(
    update: StepUpdate, leaf: ComparedLeaf
) -> Iterator[tuple[np.ndarray, Fact]]:
    """Yield what the usual mistakes make of a metric, each with its fact.

    The first prediction that holds is reported. Multiples come before sums, because a
    sum of equal means is N times the mean. One device's result comes before 1/N,
    because it may be 1/N of a sum.
    """
    N = update.N
    value = leaf.expected.value
    multiple = "{:.4g} times the reference's value"
    for factor in (N, N**2):
        yield factor * value, Fact(multiple.format(factor), "scaled metrics")
    local_values = update.local_values(leaf)
    for local_value in local_values:
        sentence = "the reference's result on one device's examples"
        yield local_value, Fact(sentence, "one device's metrics")
    if local_values:
        results = "of the reference's results on each device's examples"
        yield np.mean(local_values, 0), Fact(f"the mean {results}", "mean of means")
        yield np.sum(local_values, 0), Fact(f"the sum {results}", "scaled metrics")
    yield value / N, Fact(multiple.format(1 / N), "scaled metrics")
