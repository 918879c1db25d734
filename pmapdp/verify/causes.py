"""Name the cause of a difference, if the outputs show it: by experiments that only call compiled functions.

- parts: the reference on each device's own examples, as if there were no all-reduce;
- influence: each example is replaced in turn, and the moves of step and reference are compared;
- the same examples on every device, which shows one set of random numbers.

A cause is named only if its prediction is far nearer than the reference. Everything else is unknown, and the report
says which leaves differ, from which update on, by how much, and if the devices hold the same values.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.mistakes import Cause, name_cause
from pmapdp.verify.reference import present
from pmapdp.verify.rounding import Update, equations
from pmapdp.verify.trees import Leaves, distance, few, multiple
from pmapdp.verify.trial import Trial

CLEAR = 10  # times its tolerance: how far a leaf is off that can tell causes apart
NEAR = 1e-3  # of the difference: how near a prediction must be
EQUAL = 1e-2  # relative error of a move as a multiple of another, and of how much an example counts
SURE = 20  # times its tolerance: how far the reference must move a leaf to tell how much an example counts
MOST_EXAMPLES = 128  # one run each, with this example replaced
MOST_LEAVES = 32  # that are asked if anything depends on them


class Case:
    """One update by the step on N devices, from the reference's state."""

    def __init__(self, trial: Trial, update: Update):
        self.trial, self.update, self.N = trial, update, len(trial.devices)
        self.got = trial.run(update)
        # How far each compared leaf is off, on the device where it is farthest, and what is allowed.
        self.off = {
            name: (max(distance(copy, update.values[name]) for copy in self.got[name]), most.tolerance)
            for name, most in update.allowed.items()
            if most.kind in ("close", "exact")
        }

    def wrong(self, metrics: bool = False) -> dict[str, tuple[float, float]]:
        """Return the leaves of the state or of the metrics that are off by more than is allowed, the farthest first."""
        found = [(name, off) for name, off in self.off.items() if self.trial.reference.is_metric(name) == metrics]
        found = [(name, (far, tolerance)) for name, (far, tolerance) in found if far > tolerance]
        return dict(sorted(found, key=lambda leaf: -leaf[1][0] / (leaf[1][1] or 1e-300)))

    @functools.cached_property
    def clear(self) -> list[str]:
        """The leaves of the state that are off by much more than is allowed."""
        return [name for name, (far, tolerance) in self.wrong().items() if far > CLEAR * tolerance]

    @functools.cached_property
    def fractions(self) -> list[str]:
        """Those of them that are no whole numbers."""
        return [name for name in self.clear if self.update.values[name].dtype.kind == "f"]

    @functools.cached_property
    def parts(self) -> list[Leaves]:
        """The results of the reference on each device's own examples; empty if it can't."""
        update = self.update
        if update.batch is not None and update.examples % self.N:
            return []
        has_all = update.batch is None or self.trial.reference.is_own("batch")
        batches = [update.batch if has_all else self.part(n) for n in range(self.N)]
        try:
            return [self.trial.reference((update.state, x, *update.key), n) for n, x in enumerate(batches)]
        except Exception:  # a reference may take only one batch size
            return []

    def part(self, device: int) -> Any:
        """Return one device's examples."""
        b = self.update.examples // self.N
        return self.update.rows(slice(device * b, (device + 1) * b))

    @functools.cached_property
    def reseeded(self) -> Update:
        """The update with other random numbers."""
        state, key = trees.reseed((self.update.state, self.update.key))
        return self.update._replace(state=state, key=key, values=self.reference(state=state, key=key))

    @functools.cached_property
    def drawn(self) -> dict[str, float]:
        """The distance that each leaf moves with other random numbers, if it does."""
        a, b = self.update.values, self.reseeded.values
        return {name: distance(a[name], b[name]) for name in self.differing(a, b)}

    def differing(self, a: Leaves, b: Leaves) -> list[str]:
        """Return the leaves of fractions in which two results differ by more than rounding."""
        compared = [(name, most.tolerance) for name, most in self.update.allowed.items() if most.kind == "close"]
        return [name for name, tolerance in compared if distance(a[name], b[name]) > 4 * tolerance]

    def reference(self, **changes: Any) -> Leaves:
        """Return what the reference makes of the update with other arguments."""
        return self.trial.reference(self.update._replace(**changes).arguments)

    def rerun(self, index: Any) -> tuple[Leaves, Leaves]:
        """Return what the step (its first device) and the reference make of the examples at `index`."""
        batch = self.update.rows(index)
        got = self.trial.run(self.update._replace(batch=batch))
        return {name: copies[0] for name, copies in got.items()}, self.reference(batch=batch)

    def is_near(self, name: str, predicted: Sequence[Any]) -> bool:
        """Return True if a wrong leaf of the state is as predicted for each device, or by a single array for all."""
        copies, (far, tolerance) = self.got[name], self.off[name]
        each = [*predicted] * (len(copies) if len(predicted) == 1 else 1)
        rest = max(map(distance, copies, each)) if len(each) == len(copies) else np.inf
        return rest <= max(NEAR * far, tolerance) and rest < far / 4

    def differs_between_devices(self, name: str) -> bool:
        """Return True if the devices hold different values of a wrong leaf."""
        copies, (far, tolerance) = self.got[name], self.off[name]
        return max(distance(copy, copies[0]) for copy in copies) > max(tolerance, EQUAL * min(far, 1e300))

    def matters(self, name: str) -> bool:
        """Return True if the next update depends on a leaf, as on a parameter."""
        return self.trial.reference.matters(name, self.update.arguments)

    def has_parameters(self, besides: Sequence[str]) -> bool:
        """Return True if the next update depends on another leaf: without one, a parameter looks like a statistic."""
        own = self.trial.reference.is_own
        others = [name for name in trees.named(self.update.state) if name not in besides and not own(name)]
        return any(map(self.matters, others[:MOST_LEAVES]))


def explain_state(case: Case, also_on_one: bool, facts: str) -> Cause:
    """Return the cause of a wrong state.

    Args:
        also_on_one: if one device is off, too, so that no average over devices is at fault.
        facts: what is sure if no cause is.
    """
    looks = [devices_differ, same_mask, factor, mean_of_means] if case.N > 1 and not also_on_one else []
    names = list(case.wrong())
    found = next(filter(None, (look(case) for look in [*looks, examples] if case.clear)), None)
    if found or not case.fractions:
        return found or name_cause("unknown", names, facts=facts)
    ratio, error = change(case, case.fractions[0])
    moves = f" {case.fractions[0]} moves {ratio:.3g} times as far as in the reference." * (error < EQUAL * abs(ratio))
    return name_cause("unknown", names, facts=facts + moves)


def change(case: Case, name: str) -> tuple[float, float]:
    """Return how many times as far as in the reference a leaf changes, and the relative error of that."""
    old = trees.values(case.update.state)[name]
    return multiple(case.got[name][0] - old, case.update.values[name] - old)


def devices_differ(case: Case) -> Cause | None:
    """Find values that differ between devices: of their own examples, as without an all-reduce, or of other things."""
    different = [name for name in case.wrong() if case.differs_between_devices(name)]
    local = [name for name in different if is_local(case, name)]
    if trained := [name for name in local[:MOST_LEAVES] if case.matters(name)]:
        return name_cause("no all-reduce", trained)
    if different and local == different and case.has_parameters(besides=different):
        return name_cause("local statistics", local)
    return name_cause("drift", [name for name in different if name not in local] or different) if different else None


def is_local(case: Case, name: str) -> bool:
    """Return True if each device holds the result of its own examples.

    That is what the reference makes of them, or, as in Adam's moments, values that differ and have the right mean.
    """
    copies, (far, tolerance) = case.got[name], case.off[name]
    if case.parts and case.is_near(name, [part[name] for part in case.parts]):
        return True
    if name not in case.fractions or len(copies) != case.N or not np.isfinite(far):
        return False
    alike = any(distance(copy, copies[0]) <= EQUAL * far for copy in copies[1:])
    rest = distance(np.mean(copies, 0), case.update.values[name])
    return not alike and rest <= max(NEAR * far, tolerance)


def same_mask(case: Case) -> Cause | None:
    """Find one set of random numbers on all devices.

    If all have the same examples, the step does what the reference makes of one device's, and the reference doesn't.
    """
    B = case.update.examples
    if not B or not case.parts or not case.drawn or case.trial.reference.is_own("batch"):
        return None
    got, right = case.rerun(np.tile(np.arange(B // case.N), case.N))
    if case.differing(got, case.parts[0]) or not case.differing(right, case.parts[0]):
        return None
    return name_cause("same mask", list(case.wrong()))


def factor(case: Case) -> Cause | None:
    """Find a change N or 1/N times as large, of the parameters or of moments that were zero."""
    changes = [(*change(case, name), case.update.values[name].size) for name in case.fractions]
    return name_factor(case, [(ratio, size) for ratio, error, size in changes if error < NEAR * abs(ratio)])


def name_factor(case: Case, ratios: Sequence[tuple[float, int]]) -> Cause | None:
    """Return the cause of a gradient N or 1/N times as large, if that is every ratio, or its square in second moments.

    Each ratio comes with its number of entries: a single number must be met more exactly.
    """
    N, names = case.N, list(case.wrong())
    ratios = [(ratio, size) for ratio, size in ratios if abs(ratio - 1) > EQUAL]

    def all_are(first: float) -> bool:
        def is_one(value: float) -> list[bool]:
            return [abs(ratio / value - 1) < (EQUAL / 2 if size > 1 else 1e-5) for ratio, size in ratios]

        return any(is_one(first)) and all(map(max, is_one(first), is_one(first**2)))

    if all_are(N) or all_are(N * N):
        placed = present(*case.trial.place(case.update))
        try:
            program = jax.make_jaxpr(lambda: case.trial.step(*placed))()
            checked = any(each.params.get("check_vma") is True for each in equations(program.jaxpr))
        except Exception:  # a Python function around compiled ones need not be traceable
            checked = False
        if checked:
            return name_cause("check_vma", names, N=N, ratio=N if all_are(N) else N * N)
        return name_cause("sum for mean", names, N=N) if all_are(N) else None
    return name_cause("averaged twice", names, N=N) if all_are(1 / N) else None


def mean_of_means(case: Case) -> Cause | None:
    """Find the mean of what each device does with its own examples, or a statistic of the first device's."""
    parts = {name: [part[name] for part in case.parts] for name in case.clear[:MOST_LEAVES] if case.parts}
    means = [n for n, each in parts.items() if n in case.fractions and case.is_near(n, [np.mean(each, 0)])]
    still = [n for n, each in parts.items() if (n in means or case.is_near(n, each[:1])) and not case.matters(n)]
    statistics = [name for name in still if not follows_another(case, name)]
    if statistics and case.has_parameters(besides=statistics):
        return name_cause("local statistics", statistics)
    several = any(case.update.values[name].size > 1 for name in means)
    return name_cause("mean of means", means) if means and (several or means == case.clear) else None


def follows_another(case: Case, name: str) -> bool:
    """Return True if a leaf's error is a multiple of another's, as an average of the parameters has it."""
    errors = {n: case.got[n][0] - case.update.values[n] for n in case.fractions if case.update.values[n].size > 1}
    others = [
        error for n, error in errors.items() if n != name and name in errors and error.shape == errors[name].shape
    ]
    found = [multiple(errors[name], other) for other in others]
    return any(rest < EQUAL * abs(ratio) for ratio, rest in found)


def examples(case: Case) -> Cause | None:
    """Find examples that are dropped or count more than others, or a gradient that is a multiple of the reference's."""
    B, names, right = case.update.examples, list(case.wrong()), case.update.values
    if not 2 <= B <= MOST_EXAMPLES or case.trial.reference.is_own("batch"):
        return None
    found = influence(case, range(B), [name for name in case.fractions if right[name].size > 1])
    if not found:
        return None
    best = found[min(found, key=lambda name: found[name][1])][0]
    ends = [int(np.nanargmin(best)), int(np.nanargmax(best))]
    low, high = best[ends]
    if high - low < 3 * EQUAL * abs(high):
        return None if case.N == 1 else name_factor(case, [(float(np.nanmedian(x)), 2) for x, _ in found.values()])
    if case.drawn:  # a mask may look like it: then other examples count with other random numbers
        other = influence(Case(case.trial, case.reseeded), ends, names)
        if not any(np.allclose(best[ends], x, EQUAL, EQUAL) for x, _ in other.values()):
            return None
    places = [np.flatnonzero(np.abs(best - count) < EQUAL * high).tolist() for count in (0, low, high)]
    if places[0]:
        return name_cause("dropped", names, dropped=few(places[0]))
    if low < 0:
        return None
    return name_cause("counted unequally", names, heavy=few(places[2]), light=few(places[1]), ratio=f"{high / low:.3g}")


def influence(case: Case, examples: Sequence[int], names: list[str]) -> dict[str, tuple[np.ndarray, float]]:
    """Return how far the step moves when an example is replaced, as a multiple of the reference's move.

    Returns:
        {leaf: (one number an example, largest relative error)} for the leaves whose moves are multiples, and together
        the move when all are replaced: clipping, or Adam's first update of its parameters, can look like a multiple.
        Not-a-number for an example that doesn't move the reference enough.
    """
    B, right, first = case.update.examples, case.update.values, {name: case.got[name][0] for name in names}
    swapped = (np.arange(B) + B // 2) % B  # the example that takes the place of each
    reruns = [case.rerun(np.where(np.arange(B) == example, swapped, np.arange(B))) for example in examples]
    together = case.rerun(swapped)[0] if len(examples) == B else None
    found = {}
    for name in names:
        moves = [(got[name] - first[name], wanted[name] - right[name]) for got, wanted in reruns]
        enough = SURE * case.update.allowed[name].tolerance
        pairs = [multiple(moved, move) if distance(move) > enough else (np.nan, 0.0) for moved, move in moves]
        counts, error = np.array(pairs)[:, 0], max(error for _, error in pairs)
        added = sum(moved for moved, _ in moves)
        size = sum(distance(moved) for moved, _ in moves)
        is_sum = together is None or distance(together[name] - first[name], added) <= 2 * NEAR * size
        if is_sum and error < EQUAL and np.isfinite(counts).mean() > 0.5:
            found[name] = (counts, error)
    return found


def explain_metrics(case: Case, also_on_one: bool, facts: str) -> Cause:
    """Return the cause of wrong metrics: the one that explains most of them."""
    wrong = case.wrong(metrics=True)
    causes = {name: "" if also_on_one or case.N == 1 else cause_of_metric(case, name) for name in wrong}
    found = [cause for cause in causes.values() if cause]
    cause = max(found, key=found.count, default="")
    # By chance an accuracy of few values may be explained, but not the loss.
    sure = cause.startswith("scaled") or found.count(cause) == len(wrong)
    if not cause or not (sure or any(case.differs_between_devices(name) for name in wrong)):
        return name_cause("follows" if case.wrong() else "unknown", list(wrong), facts=facts)
    name, _, ratio = cause.partition(": ")
    return name_cause(name, [each for each in wrong if causes[each] == cause], ratio=ratio, N=case.N)


def cause_of_metric(case: Case, name: str) -> str:
    """Return the cause of one wrong metric, with its factor; empty if none explains it.

    Of causes that predict the same, as a sum of equal means and N times the mean, the first is named.
    """
    (far, tolerance), right = case.off[name], case.update.values[name]
    if case.differs_between_devices(name):
        return "one device's metrics"
    guesses = [(f"scaled metrics: {ratio}", right * ratio) for ratio in (case.N, case.N**2)]
    if case.parts:
        each = [np.nan_to_num(part[name]) for part in case.parts]  # of padding alone it is NaN
        guesses += [("one device's metrics", part) for part in each]
        guesses += [("mean of means", np.mean(each, 0)), ("mean of means", np.sum(each, 0))]
    guesses.append((f"scaled metrics: {1 / case.N:.3g}", right / case.N))
    rests = [(distance(case.got[name][0], np.asarray(value)), cause) for cause, value in guesses]
    nearest = min(rest for rest, _ in rests)
    if far <= 4 * tolerance or nearest > max(NEAR / 10 * far, tolerance / 64):
        return ""
    return next(cause for rest, cause in rests if rest <= max(4 * nearest, 1e-6 * distance(right)))
