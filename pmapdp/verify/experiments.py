"""Find the facts behind a difference, by experiments with the step and the reference.

An experiment predicts the step's result, and the prediction holds or not: for example
that each device holds the reference's result on its own examples, or that a change is N
times as large. A fact is what an experiment showed, and it's true whatever the program
means by it.
"""

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.influence import are_alike, compare_examples, replace_examples
from pmapdp.verify.mistakes import Facts
from pmapdp.verify.reference import Reference, step_arguments
from pmapdp.verify.step_update import StepUpdate
from pmapdp.verify.tolerances import PREDICTS, equations
from pmapdp.verify.trees import Leaves, distance, first_names

# Wrong leaves that aren't a multiple are still said to move about so many times as far.
ABOUT = 0.1
# A scale that is multiplied in and divided out again moves a result by rounding.
MOVED = 1e-6


def explain_state(update: StepUpdate) -> Facts:
    """Return the facts about a wrong state, of the first experiment that shows any."""
    facts = Facts()
    find_nan(update, facts, metrics=False)
    if facts.sentences or not update.clearly_wrong:
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
        experiment(update, facts)
        if facts.sentences:
            break
    return facts


def find_nan(update: StepUpdate, facts: Facts, *, metrics: bool) -> None:
    """Say which devices hold NaN, and if their own examples make it."""
    for name in update.errors:
        devices = devices_with_nan(update.copies[name])
        if not devices or update.reference.is_metric(name) != metrics:
            continue
        facts.sentences.append(
            f"{name}: NaN on device {first_names(devices)}, from update "
            f"{update.expected.number + 1} on."
        )
        local = devices_with_nan([result[name] for result in update.local_results])
        if local:
            facts.local_nan = True
            facts.sentences.append(
                f"On the examples of device {first_names(local)} alone, the reference "
                "is NaN, too."
            )
        return  # this leaf's NaN made the NaN of later leaves


def devices_with_nan(arrays: Sequence[np.ndarray]) -> list[int]:
    """Return the devices whose arrays hold NaN."""
    devices = []
    for device, array in enumerate(arrays):
        if (array != array).any():
            devices.append(device)
    return devices


def compare_devices(update: StepUpdate, facts: Facts) -> None:
    """Say what the devices hold, if they hold different values."""
    local = []
    correct_mean = []
    other = []
    for name in update.wrong():
        if not update.differs_between_devices(name):
            continue
        local_values = [result[name] for result in update.local_results]
        if local_values and update.is_predicted(name, local_values):
            local.append(name)
        elif mean_is_correct(update, name):
            correct_mean.append(name)
        else:
            other.append(name)
    if local:
        facts.local_results = True
        facts.sentences.append(
            f"{first_names(local)}: each device holds what the reference makes of this "
            "device's examples alone."
        )
    if correct_mean:
        facts.mean_is_correct = True
        facts.sentences.append(
            f"{first_names(correct_mean)}: the devices' values differ, and their mean "
            "is the reference's value."
        )
    if other:
        facts.other_difference = True
        facts.sentences.append(
            f"{first_names(other)}: the devices hold different values, which aren't "
            "made of their own examples alone."
        )
    find_use(update, facts, local + correct_mean)


def mean_is_correct(update: StepUpdate, name: str) -> bool:
    """Return True if all devices differ, and their mean is the reference's value.

    Without an all-reduce, that holds for Adam's first moments, and not for parameters.
    """
    copies = update.copies[name]
    error, allowed = update.errors[name]
    is_complete = name in update.wrong_floats and len(copies) == update.N
    if not is_complete or not np.isfinite(error):
        return False
    nearest = min(distance(copy, copies[0]) for copy in copies[1:])
    rest = distance(np.mean(copies, 0), update.expected.values[name])
    return nearest > PREDICTS * error and rest <= max(PREDICTS * error, allowed)


def find_use(update: StepUpdate, facts: Facts, names: list[str]) -> None:
    """Say if other results of the update depend on these leaves of the state."""
    state = update.expected.old
    floats = [name for name in state if state[name].dtype.kind in "fc"]
    leaves = [name for name in floats if name in names]
    if not leaves:
        return
    used = find_used_leaves(update.reference, leaves, update.expected.arguments)
    other_floats = [name for name in floats if name not in names]
    if not used and all(state[name].size == 1 for name in other_floats):
        # Then a parameter has no other leaf that could depend on it.
        facts.used = True
        facts.sentences.append(
            f"The state holds no other array of floats than {first_names(leaves)}."
        )
        return
    unused = [name for name in leaves if name not in used]
    if used:
        facts.used = True
        facts.sentences.append(f"Other results depend on {first_names(used)}.")
    if unused:
        facts.unused = True
        facts.sentences.append(
            f"No other result of this update depends on {first_names(unused)}."
        )


def find_used_leaves(
    reference: Reference, names: list[str], arguments: tuple
) -> list[str]:
    """Return those leaves of the state on which other results depend.

    Leaves are shifted, to see what moves. There may be hundreds, so leaves of the same
    name, such as all kernels of the parameters, are shifted together. A leaf on which a
    used leaf depends is used, too, as momentum is.
    """
    usual = reference(arguments)
    moved_by_group = []
    for group in group_by_name(names):
        moved = find_moved(reference, group, usual, arguments)
        moved_by_group.append((group, moved - group))
    users = set(usual).difference(names)
    for _ in moved_by_group:  # in each round, the users of users
        for group, moved in moved_by_group:
            if moved & users:
                users |= group
    return [name for name in names if name in users]


def find_moved(
    reference: Reference, group: set[str], usual: Leaves, arguments: tuple
) -> set[str]:
    """Return the results that move if these leaves of the state are shifted."""

    def shift(path: str, leaf: Any) -> Any:
        if path not in group:
            return leaf
        return np.asarray(leaf * 1.5 + 0.1, leaf.dtype)

    shifted_state = trees.map_with_names(shift, arguments[0])
    results = reference((shifted_state, *arguments[1:]))
    moved = set()
    for name, value in usual.items():
        if distance(value, results[name]) > MOVED * distance(value):
            moved.add(name)
    return moved


def group_by_name(names: Iterable[str]) -> list[set[str]]:
    """Group leaves by the first and the last part of their paths."""
    groups: dict[tuple[str, str], set[str]] = {}
    for name in names:
        parts = name.removesuffix("/value").split("/")  # of a variable of Flax NNX
        groups.setdefault((parts[0], parts[-1]), set()).add(name)
    return list(groups.values())


def draw_for_same_examples(update: StepUpdate, facts: Facts) -> None:
    """Give all devices the same examples, to see if they draw the same numbers.

    Then the step makes of them what one device makes of them.
    """
    if not update.local_results or not update.random_leaves:
        return
    b = update.expected.examples // update.N
    same_examples = np.tile(np.arange(b), update.N)
    step_result, reference_result = update.rerun(same_examples)
    one_device = update.local_results[0]
    if not update.differences(reference_result, one_device):
        return  # different random numbers would show nothing
    if not update.differences(step_result, one_device):
        facts.same_random_numbers = True
        facts.sentences.append(
            "With the same examples on every device, the step gives what one device "
            "makes of them: all draw the same random numbers."
        )


def find_factor(update: StepUpdate, facts: Facts) -> None:
    """Say if the changes are N, N² or 1/N times the reference's."""
    ratios = []
    for name in update.wrong_arrays:
        ratio, error = update.fit_change(name)
        if error < PREDICTS * abs(ratio):
            ratios.append(ratio)
    compare_ratios(update, ratios, facts)


def compare_ratios(update: StepUpdate, ratios: list[float], facts: Facts) -> None:
    """Say if all ratios are N, N² or 1/N.

    Adam's second moments are squares, so their ratios are, too.
    """
    wrong = np.array([ratio for ratio in ratios if abs(ratio - 1) > PREDICTS])
    N = update.N
    for factor in (N, N**2, 1 / N):
        is_factor = abs(wrong / factor - 1) < PREDICTS
        is_square = abs(wrong / factor**2 - 1) < PREDICTS
        if not is_factor.any() or not (is_factor | is_square).all():
            continue
        facts.sentences.append(
            f"{first_names(update.wrong())}: a change {wrong[is_factor][0]:.6g} times "
            f"the reference's predicts the step's on {N} devices."
        )
        if factor < 1:
            facts.times_inverse_devices = True
        elif checks_vma(update):
            facts.checks_vma = True
            facts.sentences.append(
                "The step has a shard_map with check_vma=True, where jax.grad adds up "
                "the gradients of replicated parameters."
            )
        elif factor == N:
            facts.times_devices = True
        return


def checks_vma(update: StepUpdate) -> bool:
    """Return True if the step has a `shard_map` with `check_vma=True`."""
    # A Python function around compiled ones need not be traceable.
    with contextlib.suppress(Exception):
        arguments = step_arguments(*update.place(update.expected))
        traced = jax.make_jaxpr(update.program.step)(*arguments)
        for equation in equations(traced.jaxpr):
            if equation.params.get("check_vma") is True:
                return True
    return False


def compare_with_local_results(update: StepUpdate, facts: Facts) -> None:
    """Say what is the mean of the devices' own results, or the first of them."""
    means = []
    first = []
    for name in update.clearly_wrong:
        # Each local result draws as the first device does, so a leaf that depends on
        # random numbers shows nothing.
        if not update.local_results or name in update.random_leaves:
            continue
        local_values = [result[name] for result in update.local_results]
        mean = np.mean(local_values, 0)
        if name in update.wrong_floats and update.is_predicted(name, [mean]):
            means.append(name)
        elif update.is_predicted(name, local_values[:1]):
            first.append(name)
    if means:
        facts.mean_of_local_results = True
        facts.sentences.append(
            f"{first_names(means)}: the mean of what the reference makes of each "
            "device's examples alone."
        )
    if first:
        facts.first_local_result = True
        facts.sentences.append(
            f"{first_names(first)}: what the reference makes of the first device's "
            "examples alone."
        )
    find_use(update, facts, means + first)


def weigh_examples(update: StepUpdate, facts: Facts) -> None:
    """Say how much the examples count: all N times as much, some more, or some not."""
    weights_by_leaf = replace_examples(update)
    if not weights_by_leaf:
        return
    if not are_alike(weights_by_leaf[0]):
        compare_examples(update, weights_by_leaf[0], facts)
        return
    medians = [float(np.nanmedian(weights)) for weights in weights_by_leaf]
    compare_ratios(update, medians, facts)


def describe_change(update: StepUpdate, facts: Facts) -> None:
    """Say how far the leaf that is most wrong moves, if nothing else is known."""
    for name in update.wrong_floats[:1]:
        ratio, error = update.fit_change(name)
        if error < ABOUT * abs(ratio):
            facts.sentences.append(
                f"{name} moves {ratio:.3g} times as far as in the reference, with a "
                f"relative error of {error / abs(ratio):.0e}."
            )


def explain_metrics(update: StepUpdate) -> Facts:
    """Return the facts about wrong metrics, if the state is as in the reference."""
    facts = Facts()
    find_nan(update, facts, metrics=True)
    if facts.sentences or update.wrong():
        return facts
    names_by_sentence: dict[str, list[str]] = {}
    for name in update.wrong(metrics=True):
        sentence = compare_metric(update, name, facts)
        if sentence:
            names_by_sentence.setdefault(sentence, []).append(name)
    for sentence, names in names_by_sentence.items():
        facts.sentences.append(f"{first_names(names)}: {sentence}.")
    return facts


def compare_metric(update: StepUpdate, name: str, facts: Facts) -> str:
    """Record what predicts a wrong metric, and return it as a sentence."""
    if update.differs_between_devices(name):
        facts.local_metric = True
        return "the devices hold different values"
    error, allowed = update.errors[name]
    if error <= 4 * allowed:
        return ""
    expected = update.expected.values[name]
    N = update.N
    # A sum of equal means is also N times the mean, so multiples come first. One device
    # may hold 1/N of a sum, and that is a sentence about the device.
    for factor in (N, N**2):
        if update.is_predicted(name, [expected * factor]):
            facts.scaled_metric = True
            return f"{factor} times the reference's value"
    local_values = [result[name] for result in update.local_results]
    if any(update.is_predicted(name, [value]) for value in local_values):
        facts.local_metric = True
        return "what the reference makes of one device's examples alone"
    if local_values:
        for combine, word in ((np.mean, "mean"), (np.sum, "sum")):
            if update.is_predicted(name, [combine(local_values, 0)]):
                facts.combined_metric = True
                return (
                    f"the {word} of what the reference makes of each device's examples "
                    "alone"
                )
    if update.is_predicted(name, [expected / N]):
        facts.scaled_metric = True
        return f"{1 / N:.4g} times the reference's value"
    return ""
