"""Name the cause of a difference, if experiments with the step, its jaxpr or the compiler's counts show it.

- parts: the reference on each device's own examples, as if there were no all-reduce;
- influence: each example is replaced in turn, and the moves of step and reference are
  compared;
- the same examples on every device, which shows one set of random numbers;
- again: the first update once more with the second's keys, which shows a key that
  stands still.

A cause is named only if its prediction is far nearer than the reference. Everything
else is unknown.
"""

import contextlib
import re
import tomllib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.layouts import Devices, Layout
from pmapdp.verify.reference import (
    Reference,
    Update,
    equations,
    split_result,
    step_arguments,
)
from pmapdp.verify.report import CheckError
from pmapdp.verify.trees import Leaves, distance, few, multiple

Cause = tuple[str, str]  # a name in the catalogue, and its sentence with what was found
# The catalogue of mistakes: lines that are right, wrong ones, and what `verify` says of
# them.
CATALOGUE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("mistakes.toml").read_text()
)
CLEAR = 10  # times its tolerance: how far a leaf is off that can tell causes apart
NEAR = 1e-3  # of the difference: how near a prediction must be
EQUAL = 1e-2  # relative error of a move as a multiple of another, and of how much an example counts
SURE = 20  # times its tolerance: how far the reference must move a leaf to tell how much an example counts
MOST_EXAMPLES = 128  # one run each, with this example replaced
REDRAWN = 1e-3  # of the change that other random numbers make: what changes by less than this is rounding
TOO_MUCH = 1.75  # times its part of the work: what a device may do at most; twice the work is more


def name_cause(cause: str, leaves: Sequence[str] = (), **found: Any) -> Cause:
    """Return a cause and its sentence with what was found."""
    return cause, " ".join(CATALOGUE[cause]["says"].split()).format(
        leaves=few(leaves), **found
    )


class Case:
    """One update by a step on N devices, from the reference's state, in fresh arrays that no donation reaches."""

    def __init__(
        self,
        step: Callable,
        reference: Reference,
        layout: Layout,
        devices: Devices,
        update: Update,
    ):
        self.step, self.reference, self.layout, self.devices, self.update = (
            step,
            reference,
            layout,
            devices,
            update,
        )
        self.N = len(devices)
        self.got = self.read(self.call(*self.place(update)))
        # How far each compared leaf is off, on the device where it is farthest, and
        # what is allowed.
        compared = [
            name for name, kind in update.kinds.items() if kind in ("close", "exact")
        ]
        far = {
            name: max(distance(copy, update.values[name]) for copy in self.got[name])
            for name in compared
        }
        self.off = {name: (far[name], update.allowed[name]) for name in compared}
        # The leaves that are off by much more than is allowed, and the ones with
        # fractions among them.
        self.clear = [
            name
            for name, (far, tolerance) in self.wrong().items()
            if far > CLEAR * tolerance
        ]
        self.fractions = [
            name for name in self.clear if update.values[name].dtype.kind == "f"
        ]

    def place(self, update: Update) -> tuple[Any, ...]:
        """Put state, batch and key on the devices, by the layout; their memory is nobody else's."""
        state, batch, *key = trees.to_host(update.arguments)
        own, layout, devices = self.reference.is_own, self.layout, self.devices
        rows = trees.map_with_names(
            lambda path, leaf: leaf if own(path) else None, state
        )
        if wrong := [
            np.shape(leaf)
            for leaf in jax.tree.leaves(rows)
            if np.shape(leaf)[:1] != (self.N,)
        ]:
            raise CheckError(
                f"a leaf that per_device names is {list(wrong[0])}, which are not {self.N} rows"
            )
        state = layout.place_state(
            trees.map_with_names(lambda path, x: None if own(path) else x, state),
            devices,
        )
        rows = layout.place_own(rows, devices)
        state = jax.tree.map(
            lambda a, b: b if a is None else a, state, rows, is_leaf=lambda x: x is None
        )
        batch = None if batch is None else layout.place_batch(batch, devices)
        key = [
            (layout.place_own if own("key") else layout.place_key)(each, devices)
            for each in key
        ]
        return jax.block_until_ready((state, batch, *key))

    def call(self, *placed: Any) -> dict[str, Any]:
        """Return the "state" and the "metrics" that the step returns for placed arguments, computed."""
        returned = jax.block_until_ready(self.step(*step_arguments(*placed)))
        return split_result(returned, self.reference.form, "the step")

    def read(self, returned: dict[str, Any]) -> dict[str, list[np.ndarray]]:
        """Return the devices' copies of each leaf. Names and shapes must be as in the reference's result."""
        if self.layout.fetch is not None:
            returned = returned | {"state": self.layout.fetch(returned["state"])}
        got, values = self.reference.leaves(returned), self.update.values
        if odd := sorted(set(got) ^ set(values)):
            who = "step" if odd[0] in got else "reference"
            raise CheckError(
                f"only the {who} returns {few(odd)}: return it from both, or from neither",
                "FAILED",
            )
        copies = {
            name: trees.copies(leaf, values[name].shape, self.N)
            for name, leaf in got.items()
        }
        for name in (name for name, found in copies.items() if not found):
            shapes = f"{list(np.shape(got[name]))} in the step and {list(values[name].shape)} in the reference"
            raise CheckError(
                f"{name} is {shapes}: return one shape, or on N devices also [N, ...]",
                "FAILED",
            )
        return copies

    def wrong(self, metrics: bool = False) -> dict[str, tuple[float, float]]:
        """Return the leaves of the state or of the metrics that are off by more than is allowed, the farthest first."""
        found = sorted(
            self.off.items(), key=lambda leaf: -leaf[1][0] / (leaf[1][1] or 1e-300)
        )
        return {
            n: off
            for n, off in found
            if off[0] > off[1] and self.reference.is_metric(n) == metrics
        }

    @cached_property
    def parts(self) -> list[Leaves]:
        """The results of the reference on each device's own examples; empty if it can't."""
        update, b = self.update, self.update.examples // self.N
        if not b or update.examples % self.N:
            return []
        batches = [update.rows(slice(n * b, (n + 1) * b)) for n in range(self.N)]
        try:
            return [
                self.reference((update.state, x, *update.key), n)
                for n, x in enumerate(batches)
            ]
        except Exception:  # a reference may take only one batch size
            return []

    @cached_property
    def other_seed(self) -> Update:
        """The update with other random numbers."""
        state, key = trees.reseed((self.update.state, self.update.key))
        values = self.reference((state, self.update.batch, *key))
        return self.update._replace(state=state, key=key, values=values)

    @cached_property
    def random_leaves(self) -> dict[str, float]:
        """The distance that each leaf moves with other random numbers, if it does: a learning rate does not."""
        return self.distances(self.update.values, self.other_seed.values)

    def distances(self, a: Leaves, b: Leaves) -> dict[str, float]:
        """Return the leaves of fractions in which two results differ by more than rounding, and by how much."""
        found = {
            name: distance(a[name], b[name])
            for name, kind in self.update.kinds.items()
            if kind == "close"
        }
        return {
            name: far
            for name, far in found.items()
            if far > 4 * self.update.allowed[name]
        }

    def rerun(self, index: Any) -> tuple[Leaves, Leaves]:
        """Return what the step (its first device) and the reference make of the examples at `index`."""
        update = self.update._replace(batch=self.update.rows(index))
        got = self.read(self.call(*self.place(update)))
        return {name: each[0] for name, each in got.items()}, self.reference(
            update.arguments
        )

    def change(self, name: str) -> tuple[float, float]:
        """Return how many times as far as in the reference a leaf changes, and the relative error of that."""
        old = self.update.old[name]
        return multiple(self.got[name][0] - old, self.update.values[name] - old)

    def is_near(self, name: str, predicted: Sequence[Any]) -> bool:
        """Return True if a wrong leaf of the state is as predicted for each device, or by a single array for all."""
        copies, (far, tolerance) = self.got[name], self.off[name]
        each = [*predicted] if len(predicted) > 1 else [*predicted] * len(copies)
        rest = max(map(distance, copies, each)) if len(each) == len(copies) else np.inf
        return rest <= max(NEAR * far, tolerance) and rest < far / 4

    def differs_between_devices(self, name: str) -> bool:
        """Return True if the devices hold different values of a wrong leaf."""
        copies, (far, tolerance) = self.got[name], self.off[name]
        return max(distance(copy, copies[0]) for copy in copies) > max(
            tolerance, EQUAL * min(far, 1e300)
        )

    def is_local(self, name: str) -> bool:
        """Return True if each device holds what its own examples give, or values with the right mean, as in Adam."""
        copies, (far, tolerance) = self.got[name], self.off[name]
        if self.parts and self.is_near(name, [part[name] for part in self.parts]):
            return True
        if name not in self.fractions or len(copies) != self.N or not np.isfinite(far):
            return False
        alike = any(distance(copy, copies[0]) <= EQUAL * far for copy in copies[1:])
        return not alike and distance(
            np.mean(copies, 0), self.update.values[name]
        ) <= max(NEAR * far, tolerance)


def explain_state(case: Case, facts: str) -> Cause:
    """Return the cause of a wrong state."""
    for look in (
        find_differing_devices,
        find_same_mask,
        find_factor,
        find_mean_of_means,
        find_unequal_examples,
    ):
        if case.clear and (found := look(case)):
            return found
    for name in case.fractions[:1]:
        ratio, error = case.change(name)
        facts += f" {name} moves {ratio:.3g} times as far as in the reference." * (
            error < EQUAL * abs(ratio)
        )
    return name_cause("unknown", list(case.wrong()), facts=facts)


def find_differing_devices(case: Case) -> Cause | None:
    """Find values that differ between devices: of their own examples, as without an all-reduce, or of other things."""
    different = [name for name in case.wrong() if case.differs_between_devices(name)]
    local = [name for name in different if case.is_local(name)]
    if local and (trained := case.reference.find_trained(local, case.update.arguments)):
        return name_cause("no all-reduce", trained)
    if different and local == different:
        return name_cause("local statistics", local)
    return (
        name_cause("drift", [name for name in different if name not in local])
        if different
        else None
    )


def find_same_mask(case: Case) -> Cause | None:
    """Find one set of random numbers: with the same examples on all devices, the step does what one device does."""
    if case.parts and case.random_leaves:
        got, right = case.rerun(
            np.tile(np.arange(case.update.examples // case.N), case.N)
        )
        if case.distances(right, case.parts[0]) and not case.distances(
            got, case.parts[0]
        ):
            return name_cause("same mask", list(case.wrong()))
    return None


def find_factor(case: Case, ratios: Sequence[float] = ()) -> Cause | None:
    """Find a gradient N, N * N or 1/N times as large: all ratios are that, or its square in Adam's moments."""
    changes = [
        case.change(name)
        for name in case.fractions
        if case.update.values[name].size > 1
    ]
    ratios = ratios or [ratio for ratio, error in changes if error < NEAR * abs(ratio)]
    wrong = np.array([ratio for ratio in ratios if abs(ratio - 1) > EQUAL])

    def all_are(first: float) -> bool:
        is_first, is_square = (
            abs(wrong / value - 1) < EQUAL / 2 for value in (first, first**2)
        )
        return bool(is_first.any() and (is_first | is_square).all())

    N, names = case.N, list(case.wrong())
    factor = next(filter(all_are, (N, N * N, 1 / N)), 0)
    with contextlib.suppress(
        Exception
    ):  # a Python function around compiled ones need not be traceable
        program = jax.make_jaxpr(case.step)(*step_arguments(*case.place(case.update)))
        if factor > 1 and any(
            each.params.get("check_vma") is True for each in equations(program.jaxpr)
        ):
            return name_cause("check_vma", names, N=N, ratio=factor)
    cause = {N: "sum for mean", 1 / N: "averaged twice"}.get(factor)
    return name_cause(cause, names, N=N) if cause else None


def find_mean_of_means(case: Case) -> Cause | None:
    """Find the mean of what each device does with its own examples, or a statistic of the first device's."""
    # Each part is drawn as the first device draws, so leaves that depend on random
    # numbers show nothing.
    names = [
        name for name in case.clear if name not in case.random_leaves and case.parts
    ]
    means = [
        n
        for n in case.fractions
        if n in names and case.is_near(n, [np.mean([p[n] for p in case.parts], 0)])
    ]
    near = [
        name
        for name in names
        if name in means or case.is_near(name, [case.parts[0][name]])
    ]
    trained = case.reference.find_trained(near, case.update.arguments) if near else []
    arrays = [name for name in means if case.update.values[name].size > 1]
    # The error of an average of the parameters is a multiple of theirs, and no
    # statistic's is.
    errors = {name: case.got[name][0] - case.update.values[name] for name in arrays}
    pairs = [
        (n, m)
        for n in arrays
        for m in arrays
        if m in trained and errors[n].shape == errors[m].shape
    ]
    multiples = [(n, *multiple(errors[n], errors[m])) for n, m in pairs]
    averages = [name for name, ratio, error in multiples if error < EQUAL * abs(ratio)]
    if statistics := [name for name in near if name not in (*trained, *averages)]:
        return name_cause("local statistics", statistics)
    return name_cause("mean of means", means) if arrays or means == case.clear else None


def find_unequal_examples(case: Case) -> Cause | None:
    """Find examples that are dropped or count more than others, or a gradient that is a multiple of the reference's."""
    B, names, right = case.update.examples, list(case.wrong()), case.update.values
    arrays = [name for name in case.fractions if right[name].size > 1]
    found = measure_influence(case, range(B), arrays) if 2 <= B <= MOST_EXAMPLES else {}
    if not found:
        return None
    best = found[min(found, key=lambda name: found[name][1])][0]
    ends = [int(np.nanargmin(best)), int(np.nanargmax(best))]
    low, high = best[ends]
    if high - low < 3 * EQUAL * abs(high):
        return find_factor(case, [float(np.nanmedian(x)) for x, _ in found.values()])
    if (
        case.random_leaves
    ):  # a mask may look like it: then other examples count with other random numbers
        other_case = Case(
            case.step, case.reference, case.layout, case.devices, case.other_seed
        )
        other = measure_influence(other_case, ends, names)
        if not any(np.allclose(best[ends], x, EQUAL, EQUAL) for x, _ in other.values()):
            return None
    if low < -EQUAL * high:
        return None
    light, heavy = (
        few(np.flatnonzero(np.abs(best - x) < EQUAL * high)) for x in (low, high)
    )
    cause = "dropped" if low < EQUAL * high else "counted unequally"
    return name_cause(
        cause, names, light=light, heavy=heavy, ratio=f"{high / max(low, 1e-9):.3g}"
    )


def measure_influence(
    case: Case, examples: Sequence[int], names: list[str]
) -> dict[str, tuple[np.ndarray, float]]:
    """Return how far the step moves when an example is replaced, as a multiple of the reference's move.

    {leaf: (a number for each example, NaN if the reference hardly moves; largest
    error)}, if the moves are multiples, and add up to the move when all are replaced:
    under clipping and Adam they don't.
    """
    B, right = case.update.examples, case.update.values
    swapped = np.roll(np.arange(B), B // 2)  # the example that takes the place of each
    reruns = [
        case.rerun(np.where(np.arange(B) == example, swapped, np.arange(B)))
        for example in examples
    ]
    together = case.rerun(swapped)[0] if len(examples) == B else None
    found = {}
    for name in names:
        first, enough = case.got[name][0], SURE * case.update.allowed[name]
        moves = [
            (got[name] - first, wanted[name] - right[name]) for got, wanted in reruns
        ]
        pairs = [
            multiple(moved, move) if distance(move) > enough else (np.nan, 0.0)
            for moved, move in moves
        ]
        counts, error = np.array(pairs)[:, 0], max(error for _, error in pairs)
        added, size = (
            sum(moved for moved, _ in moves),
            sum(distance(moved) for moved, _ in moves),
        )
        is_sum = (
            together is None
            or distance(together[name] - first, added) <= 2 * NEAR * size
        )
        if is_sum and error < EQUAL and np.isfinite(counts).mean() > 0.5:
            found[name] = (counts, error)
    return found


def explain_metrics(case: Case, facts: str) -> Cause:
    """Return the cause of wrong metrics, if one explains them all."""
    wrong = list(case.wrong(metrics=True))
    causes = {cause_of_metric(case, name) for name in wrong}
    name, _, ratio = (causes.pop() if len(causes) == 1 else "").partition(": ")
    if case.wrong() and name in (
        "",
        "mean of means",
    ):  # a loss of wrong masks or statistics looks like it
        name = "follows"
    return name_cause(name or "unknown", wrong, facts=facts, ratio=ratio, N=case.N)


def cause_of_metric(case: Case, name: str) -> str:
    """Return the cause of one wrong metric, with its factor; empty if none explains it."""
    (far, tolerance), right, N = case.off[name], case.update.values[name], case.N
    if case.differs_between_devices(name):
        return "one device's metrics"
    each = [
        np.nan_to_num(part[name]) for part in case.parts
    ]  # of padding alone it is NaN
    # Of causes that predict the same, as a sum of equal means and N times the mean, the
    # first is named.
    guesses = [(f"scaled metrics: {ratio}", right * ratio) for ratio in (N, N * N)]
    guesses += [("one device's metrics", part) for part in each]
    guesses += [
        ("mean of means", combine(each, 0)) for combine in (np.mean, np.sum) if each
    ]
    guesses += [(f"scaled metrics: {1 / N:.3g}", right / N)]
    rests = [
        (distance(case.got[name][0], np.asarray(value)), cause)
        for cause, value in guesses
    ]
    nearest = min(rests)[0]
    if far <= 4 * tolerance or nearest > max(NEAR / 10 * far, tolerance / 64):
        return ""
    return next(
        cause
        for rest, cause in rests
        if rest <= max(4 * nearest, 1e-6 * distance(right))
    )


def find_fixed_key(cases: list[Case]) -> Cause | None:
    """Find a second update that draws the random numbers of the first."""
    case, random, old = cases[0], cases[0].random_leaves, cases[0].update.old
    if not random or len(cases) == 1:
        raise CheckError(
            "no result depends on a key" if not random else "it takes updates=2"
        )
    # The first update once more, with the counters and keys of the second: what differs
    # was drawn.
    returned = case.call(*case.place(case.update))["state"]
    state, batch, *key = case.place(case.update._replace(key=cases[1].update.key))
    state = jax.tree.map(
        lambda first, second: first if trees.is_float(first) else second,
        state,
        returned,
    )
    again = case.read(case.call(state, batch, *key))
    pairs = {name: (again[name][0], case.got[name][0]) for name in random}
    metrics = [name for name in random if case.reference.is_metric(name)]
    is_redrawn = any(
        distance(*pairs[name]) > REDRAWN * random[name] for name in metrics or random
    )
    if arrays := [name for name in random if not metrics and old[name].size > 1]:
        # A learning rate by a schedule scales the change of the state, and draws
        # nothing.
        moves = [
            multiple(*(each - old[name] for each in pairs[name])) for name in arrays
        ]
        is_redrawn = any(error > REDRAWN * abs(ratio) for ratio, error in moves)
    one_key = bool(case.update.key) and case.update.key[0] is cases[1].update.key[0]
    if (
        one_key
        and not is_redrawn
        and not any(each.wrong(metrics) for each in cases for metrics in (False, True))
    ):
        why = "every update was given the same key. If your loop passes new ones, give key=lambda update: "
        why += "jax.random.fold_in(key, update). If not, let the step fold the update's number into it"
        raise CheckError(why, "not compared")
    return None if is_redrawn else name_cause("key stands still")


def find_unsplit_work(cases: list[Case]) -> Cause | None:
    """Find devices that make more than their part of the operations, by the compiler's counts."""
    case, reference, update = cases[0], cases[0].reference, cases[0].update
    if case.N == 1 or not update.examples or update.examples % case.N:
        raise CheckError("there is no batch that is split over several devices")
    step = jax.jit(case.step).trace(*step_arguments(*case.place(update)))
    placing = [
        each.params["devices"]
        for each in step.jaxpr.eqns
        if each.primitive.name == "device_put"
    ]
    if any(place is not None for places in placing for place in places):
        raise CheckError(
            "the function around your step places arrays, and the compiler doesn't count that"
        )
    part = update.rows(slice(update.examples // case.N))
    device = reference.jitted_device.lower(0, update.state, part, *update.key)
    programs = [
        each.compile()
        for each in (step.lower(), device, reference.jitted.lower(*update.arguments))
    ]
    loops = [
        sorted(
            re.findall(
                r' while\(|"known_trip_count":\{"n":"\d+"\}', str(each.as_text())
            )
        )
        for each in programs
    ]
    if loops[0] not in loops[1:]:
        raise CheckError(
            "the compiler counts a loop once, and the loops of step and reference differ"
        )
    mine, its_part, all_of_it = (
        (each.cost_analysis() or {}).get("flops", 0) for each in programs
    )
    share, ratio = its_part / (all_of_it or 1), mine / (all_of_it or 1)
    most = max(
        TOO_MUCH * share, share + 3 * (share - 1 / case.N) / (1 - 1 / case.N)
    )  # some is the same for any batch
    if not 0 < most < 0.9:
        raise CheckError("too little of the work depends on the number of examples")
    return (
        name_cause("every device computes everything", ratio=ratio, part=share)
        if ratio >= most
        else None
    )
