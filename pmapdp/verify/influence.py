"""Change the examples or the state of an update, and see what moves.

`measure_weights` replaces examples one by one, and compares how far the step moves with
how far the reference moves. A factor of the gradient shows there, even if weight decay
hides it in the update: weight decay is the same before and after, so it's in neither
move.

`find_used_leaves` shifts leaves of the state, to find those on which others depend.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.mistakes import Fact
from pmapdp.verify.reference import Reference
from pmapdp.verify.step_update import ComparedLeaf, StepUpdate
from pmapdp.verify.thresholds import (
    CLEARLY_WRONG_FACTOR,
    MIN_KNOWN_WEIGHTS,
    NEGLIGIBLE_FRACTION,
    SHIFT,
    SHIFT_FACTOR,
    WEIGHT_SPREAD,
    WEIGHT_TOLERANCE,
)
from pmapdp.verify.tolerances import ReferenceUpdate
from pmapdp.verify.trees import Leaves, distance, first_names, fit_factor


def measure_weights(
    update: StepUpdate, examples: Sequence[int], leaves: list[ComparedLeaf]
) -> dict[str, np.ndarray]:
    """Replace examples one by one, and compare how far step and reference move.

    Returns:
        The weights of the examples by leaf, `[examples]`: the step's moves as multiples
        of the reference's, or NaN if the reference hardly moves. The most exact leaf
        comes first. Leaves whose moves aren't multiples are left out, as under clipping
        and Adam.
    """
    B = update.expected.examples
    replacements = np.roll(np.arange(B), B // 2)
    reruns = []
    for example in examples:
        index = np.arange(B)
        index[example] = replacements[example]
        reruns.append(update.rerun(index))
    weights_of = {}
    error_of = {}
    for leaf in leaves:
        weights, errors = fit_moves(leaf, reruns)
        are_known = len(errors) > MIN_KNOWN_WEIGHTS * len(weights)
        if are_known and max(errors) < WEIGHT_TOLERANCE:
            weights_of[leaf.name] = weights
            error_of[leaf.name] = max(errors)
    names = sorted(weights_of, key=lambda name: error_of[name])
    return {name: weights_of[name] for name in names}


def fit_moves(
    leaf: ComparedLeaf, reruns: list[tuple[Leaves, Leaves]]
) -> tuple[np.ndarray, list[float]]:
    """Return a leaf's moves as multiples of the reference's, and their errors."""
    weights = []
    errors = []
    for step_result, reference_result in reruns:
        move = step_result[leaf.name] - leaf.copies[0]
        expected_move = reference_result[leaf.name] - leaf.expected.value
        weight = np.nan
        # Rounding moves both ends of a move.
        if distance(expected_move) > 2 * CLEARLY_WRONG_FACTOR * leaf.expected.allowed:
            weight, error = fit_factor(move, expected_move)
            errors.append(error)
        weights.append(weight)
    return np.array(weights), errors


def are_zero(weights: np.ndarray) -> bool:
    """Return True if all weights are 0, within rounding."""
    return bool(np.nanmax(np.abs(weights)) < WEIGHT_TOLERANCE)


def are_equal(weights: np.ndarray) -> bool:
    """Return True if all weights are equal, within rounding."""
    spread = np.nanmax(weights) - np.nanmin(weights)
    return bool(spread < WEIGHT_SPREAD * abs(np.nanmax(weights)))


def compare_examples(update: StepUpdate, weights: np.ndarray) -> Iterator[Fact]:
    """Say which examples count more than others, or not at all."""
    ends = [int(np.nanargmin(weights)), int(np.nanargmax(weights))]
    low, high = weights[ends]
    if low < -WEIGHT_TOLERANCE * high or depends_on_key(update, ends, weights[ends]):
        return
    light = first_names(np.flatnonzero(np.abs(weights - low) < WEIGHT_TOLERANCE * high))
    heavy = first_names(
        np.flatnonzero(np.abs(weights - high) < WEIGHT_TOLERANCE * high)
    )
    if low < WEIGHT_TOLERANCE * high:
        yield Fact(
            f"The examples at {light} have no influence: if others take their place, "
            "nothing changes.",
            "dropped",
        )
    else:
        yield Fact(
            f"The examples at {heavy} count {high / low:.3g} times as much as those at "
            f"{light}.",
            "counted unequally",
        )


def depends_on_key(update: StepUpdate, ends: list[int], weights: np.ndarray) -> bool:
    """Return True if other random numbers give these examples other weights.

    Dropout of whole examples does. The step then draws with another key than the
    reference, and leaves out other examples.
    """
    if not update.random_leaves:
        return False
    reseeded = StepUpdate(update.step, update.reseeded)
    reseeded_weights = measure_weights(reseeded, ends, reseeded.wrong_leaves("state"))
    for leaf_weights in reseeded_weights.values():
        if np.allclose(weights, leaf_weights, WEIGHT_TOLERANCE, WEIGHT_TOLERANCE):
            return False
    return True


def find_used_leaves(
    reference: Reference, names: list[str], updates: list[ReferenceUpdate]
) -> tuple[list[str], list[str]]:
    """Find the leaves of the state on which other results of these updates depend.

    There may be hundreds, so leaves of one name, such as all kernels, are shifted
    together. If a result moves, the leaves are halved, and so on, until the result is
    known to depend on a single one. That leaf counts as a result from then on: if the
    parameters are used, so is the momentum on which they depend.

    Returns:
        The leaves that are used, and those that aren't. A leaf is in neither if it was
        only shifted together with others, or if only such leaves depend on it.
    """
    users = set(updates[0].leaves).difference(names)
    unknown: set[str] = set()
    waiting = group_by_name(names)
    moved_by = cache(partial(find_moved, reference, updates))

    def find_moving_group(results: set[str]) -> tuple[str, ...] | None:
        """Return the first waiting group that moves one of these results."""
        for group in waiting:
            if moved_by(group) & results:
                return group
        return None

    while group := find_moving_group(users):
        waiting.remove(group)
        if len(group) == 1:
            users.update(group)
            continue
        middle = len(group) // 2
        first = group[:middle]
        second = group[middle:]
        if not moved_by(first) & users:
            first, second = second, first
        waiting.append(first)
        # To shift every leaf alone would take too long, so one is enough.
        if len(second) > 1 and moved_by(second) & users:
            unknown.update(second)
        else:
            waiting.append(second)
    while group := find_moving_group(unknown):
        waiting.remove(group)
        unknown.update(group)
    used = [name for name in names if name in users]
    unused = [name for name in names if name not in users | unknown]
    return used, unused


def find_moved(
    reference: Reference, updates: list[ReferenceUpdate], group: tuple[str, ...]
) -> set[str]:
    """Shift a group of leaves of the state, and return the other results that move."""

    def shift(path: str, leaf: Any) -> Any:
        if path not in group:
            return leaf
        # Each by another factor, so that a difference of two equal leaves moves, too.
        factor = SHIFT_FACTOR + group.index(path) / len(group)
        return np.asarray(leaf * factor + SHIFT, leaf.dtype)

    moved = set()
    for update in updates:
        shifted_state = trees.map_with_names(shift, update.state)
        results = reference((shifted_state, update.batch, update.key))
        for name, value in update.values.items():
            if distance(value, results[name]) > NEGLIGIBLE_FRACTION * distance(value):
                moved.add(name)
    return moved.difference(group)


def group_by_name(names: Iterable[str]) -> list[tuple[str, ...]]:
    """Group leaves by the first and the last part of their paths.

    In a group, those whose paths differ only in numbers stand together.
    """
    groups = defaultdict(list)
    for name in sorted(names, key=lambda name: re.sub(r"\d", "", name)):
        parts = name.removesuffix("/value").split("/")  # of a variable of Flax NNX
        groups[parts[0], parts[-1]].append(name)
    return [tuple(group) for group in groups.values()]
