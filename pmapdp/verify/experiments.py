"""Find the facts behind a difference, by experiments with the step and the reference.

An experiment predicts the step's result, and the prediction holds or not: for example
that each device holds the reference's result on its own examples, or that a change is N
times as large. A fact is what an experiment showed, and it's true whatever the program
means by it.
"""

import contextlib
from collections.abc import Iterator, Sequence

import jax
import numpy as np

from pmapdp.verify.influence import (
    MOST_EXAMPLES,
    are_alike,
    compare_examples,
    find_used_leaves,
    measure_weights,
)
from pmapdp.verify.mistakes import Fact
from pmapdp.verify.step_update import ComparedLeaf, StepUpdate
from pmapdp.verify.tolerances import PREDICTS, equations
from pmapdp.verify.trees import Leaves, distance, first_names

# Wrong leaves that aren't a multiple are still said to move about so many times as far.
ABOUT = 0.1


def explain_state(update: StepUpdate) -> list[Fact]:
    """Return the facts about a wrong state, of the first experiment that shows any."""
    facts = list(find_nan(update, metrics=False))
    if facts or not any(leaf.is_clearly_wrong for leaf in update.wrong()):
        return facts
    experiments = (
        compare_devices,
        draw_for_same_examples,
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


def find_nan(update: StepUpdate, *, metrics: bool) -> Iterator[Fact]:
    """Say which devices hold NaN, and if their own examples make it."""
    for leaf in update.wrong(metrics):
        devices = devices_with_nan(leaf.copies)
        if devices:
            yield Fact(
                f"{leaf.name}: NaN on device {first_names(devices)}, from update "
                f"{update.expected.number + 1} on."
            )
            local = devices_with_nan(update.local_values(leaf))
            if local:
                yield Fact(
                    f"On the examples of device {first_names(local)} alone, the "
                    "reference is NaN, too.",
                    "NaN on one device",
                )
            return  # this leaf's NaN made the NaN of later leaves


def devices_with_nan(arrays: Sequence[np.ndarray]) -> list[int]:
    """Return the devices whose arrays hold NaN."""
    return [device for device, array in enumerate(arrays) if (array != array).any()]


def compare_devices(update: StepUpdate) -> Iterator[Fact]:
    """Say what the devices hold, if they hold different values."""
    local = []
    correct_mean = []
    unexplained = []
    for leaf in update.wrong():
        if not leaf.differs_between_devices():
            continue
        if leaf.is_predicted(update.local_values(leaf)):
            local.append(leaf.name)
        elif mean_is_correct(leaf, update.N):
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
    use_facts = describe_use(update, local + correct_mean, "no all-reduce")
    mistakes = [fact.mistake for fact in use_facts]
    yield from describe_leaves(
        unexplained,
        "the devices hold different values, which aren't the results on their own "
        "examples",
        # Parameters without an all-reduce make other leaves differ, too.
        "" if "no all-reduce" in mistakes else "drift",
    )
    yield from use_facts


def describe_leaves(names: list[str], sentence: str, mistake: str = "") -> list[Fact]:
    """Return a fact about these leaves, or none if there are none of them."""
    if not names:
        return []
    return [Fact(f"{first_names(names)}: {sentence}.", mistake)]


def mean_is_correct(leaf: ComparedLeaf, N: int) -> bool:
    """Return True if the mean over all devices is the reference's value.

    Without an all-reduce, that holds for Adam's first moments, and not for parameters.
    """
    if leaf.expected.kind != "close" or len(leaf.copies) != N:
        return False
    rest = distance(np.mean(leaf.copies, 0), leaf.expected.value)
    return leaf.is_clearly_wrong and leaf.is_explained(rest)


def describe_use(
    update: StepUpdate, names: list[str], mistake_if_used: str
) -> list[Fact]:
    """Say on which leaves of the state other results depend, as on a parameter."""
    leaves = []
    other_sizes = []
    for name, leaf in update.expected.leaves.items():
        if leaf.is_metric or leaf.value.dtype.kind != "f":
            continue
        if name in names:
            leaves.append(name)
        else:
            other_sizes.append(leaf.value.size)
    if not leaves:
        return []
    used = find_used_leaves(update.reference, leaves, update.expected.arguments)
    sentence = "Other results depend on {}."
    if not used and max(other_sizes, default=1) == 1:
        # Then a parameter has no other leaf that could depend on it.
        used = leaves
        sentence = "The state holds no other array of floats than {}."
    facts = []
    if used:
        facts.append(Fact(sentence.format(first_names(used)), mistake_if_used))
    unused = [name for name in leaves if name not in used]
    if unused:
        sentence = f"No other result of this update depends on {first_names(unused)}."
        facts.append(Fact(sentence, "local statistics"))
    return facts


def draw_for_same_examples(update: StepUpdate) -> Iterator[Fact]:
    """Give all devices the same examples, to see if they draw the same numbers.

    Then the step makes of them what one device makes of them.
    """
    if not update.local_results or not update.random_leaves:
        return
    b = update.expected.examples // update.N
    same_examples = np.tile(np.arange(b), update.N)
    step_result, reference_result = update.rerun(same_examples)
    one_device = update.local_results[0]
    if not state_differs(update, reference_result, one_device):
        return  # different random numbers would show nothing
    if not state_differs(update, step_result, one_device):
        yield Fact(
            "If every device gets the same examples, the new state is what one device "
            "makes of them, so all draw the same random numbers.",
            "same mask",
        )


def state_differs(update: StepUpdate, first: Leaves, second: Leaves) -> bool:
    """Return True if two results differ in the state.

    Metrics may differ anyway: one device's sums are smaller than those of all.
    """
    names = update.differences(first, second)
    return any(not update.leaves[name].expected.is_metric for name in names)


def find_factor(update: StepUpdate) -> Iterator[Fact]:
    """Say if the changes are N, N² or 1/N times the reference's."""
    ratios = {}
    for leaf in update.wrong_arrays():
        ratio, error = leaf.fit_change()
        if error < PREDICTS * abs(ratio):
            ratios[leaf.name] = ratio
    return compare_ratios(update, ratios, "the change is {} times the reference's")


def weigh_examples(update: StepUpdate) -> Iterator[Fact]:
    """Say how much the examples count: all N times as much, some more, or some not."""
    B = update.expected.examples
    weights = {}
    if 2 <= B <= MOST_EXAMPLES:
        weights = measure_weights(update, range(B), update.wrong_arrays())
    if not weights:
        return iter(())
    most_exact = next(iter(weights.values()))
    if not are_alike(most_exact):
        return compare_examples(update, most_exact)
    medians = {name: float(np.nanmedian(weights[name])) for name in weights}
    sentence = "each example counts {} times as much as in the reference"
    return compare_ratios(update, medians, sentence)


def compare_ratios(
    update: StepUpdate, ratios: dict[str, float], sentence: str
) -> Iterator[Fact]:
    """Say if all ratios are N, N² or 1/N.

    Adam's second moments are squares, so their ratios are, too.
    """
    N = update.N
    wrong = {name: x for name, x in ratios.items() if abs(x - 1) > PREDICTS}
    mistakes = {N: "sum for mean", N**2: "", 1 / N: "averaged twice"}
    for factor, mistake in mistakes.items():
        names = [name for name in wrong if is_near(wrong[name], factor)]
        squares = [name for name in wrong if is_near(wrong[name], factor**2)]
        if not names or len(wrong) > len({*names, *squares}):
            continue
        adds_up = factor > 1 and checks_vma(update)
        times = sentence.format(f"{wrong[names[0]]:.6g}")
        yield from describe_leaves(
            names, f"{times}, on {N} devices", "" if adds_up else mistake
        )
        if adds_up:
            yield Fact(
                "The step has a shard_map with check_vma=True, where jax.grad adds up "
                "the gradients of replicated parameters.",
                "check_vma",
            )
        return


def is_near(ratio: float, factor: float) -> bool:
    """Return True if a ratio is this factor within rounding."""
    return abs(ratio / factor - 1) < PREDICTS


def checks_vma(update: StepUpdate) -> bool:
    """Return True if the step has a `shard_map` with `check_vma=True`."""
    # A Python function around compiled ones need not be traceable.
    with contextlib.suppress(Exception):
        arguments = update.step.place(*update.expected.arguments)
        traced = jax.make_jaxpr(update.step.function)(*arguments)
        for equation in equations(traced.jaxpr):
            if equation.params.get("check_vma") is True:
                return True
    return False


def compare_with_local_results(update: StepUpdate) -> Iterator[Fact]:
    """Say what is the mean of the devices' own results, or the first of them."""
    means = []
    first = []
    for leaf in update.wrong():
        # Each local result draws as the first device does, so a leaf that depends on
        # random numbers shows nothing.
        if not leaf.is_clearly_wrong or leaf.name in update.random_leaves:
            continue
        local_values = update.local_values(leaf)
        if not local_values:
            continue
        is_float = leaf.expected.kind == "close"
        if is_float and leaf.is_predicted([np.mean(local_values, 0)]):
            means.append(leaf.name)
        elif leaf.is_predicted(local_values[:1]):
            first.append(leaf.name)
    yield from describe_leaves(
        means, "the mean of the reference's results on each device's own examples"
    )
    yield from describe_leaves(
        first, "the reference's result on the first device's examples"
    )
    yield from describe_use(update, means + first, "mean of means" if means else "")


def describe_change(update: StepUpdate) -> Iterator[Fact]:
    """Say how far the leaf that is most wrong moves, if nothing else is known."""
    for leaf in update.wrong_arrays()[:1]:
        ratio, error = leaf.fit_change()
        if error < ABOUT * abs(ratio):
            yield Fact(
                f"{leaf.name}: the change is about {ratio:.3g} times the reference's, "
                f"with a relative error of {error / abs(ratio):.0e}."
            )


def explain_metrics(update: StepUpdate) -> list[Fact]:
    """Return the facts about wrong metrics, if the state is as in the reference."""
    facts = list(find_nan(update, metrics=True))
    if facts or update.wrong():
        return facts
    names_by_fact: dict[Fact, list[str]] = {}
    for leaf in update.wrong(metrics=True):
        fact = explain_metric(update, leaf)
        if fact:
            names_by_fact.setdefault(fact, []).append(leaf.name)
    for fact, names in names_by_fact.items():
        facts += describe_leaves(names, *fact)
    return facts


def explain_metric(update: StepUpdate, leaf: ComparedLeaf) -> Fact | None:
    """Return a fact about a wrong metric, or None. The caller adds the name."""
    if leaf.differs_between_devices():
        return Fact("the devices hold different values", "one device's metrics")
    if not leaf.is_clearly_wrong:
        return None
    expected = leaf.expected.value
    N = update.N
    local_values = update.local_values(leaf)
    multiple = "{:.4g} times the reference's value"
    # A sum of equal means is also N times the mean, so multiples come first. One device
    # may hold 1/N of a sum, and that is a sentence about the device.
    predictions = [
        (N * expected, multiple.format(N), "scaled metrics"),
        (N**2 * expected, multiple.format(N**2), "scaled metrics"),
    ]
    for value in local_values:
        sentence = "the reference's result on one device's examples"
        predictions.append((value, sentence, "one device's metrics"))
    if local_values:
        results = "of the reference's results on each device's examples"
        mean = np.mean(local_values, 0)
        predictions.append((mean, f"the mean {results}", "mean of means"))
        total = np.sum(local_values, 0)
        predictions.append((total, f"the sum {results}", "mean of means"))
    predictions.append((expected / N, multiple.format(1 / N), "scaled metrics"))
    for predicted, sentence, mistake in predictions:
        if leaf.is_predicted([predicted]):
            return Fact(sentence, mistake)
    return None
