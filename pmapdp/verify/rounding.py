"""The reference's updates, and how far each leaf of a step may be off.

The program computes in float64 where it keeps that type. Every update starts from the reference's state. The reference
runs again, three times, with other rounding wherever numbers are added or are stored in a narrow type
(`other_rounding`); the largest change of a leaf is its spread. A leaf may be off by the sum of

- 4 times its spread;
- a fraction of its own change in the update, for formulas that differ by more than rounding at the start: 1e-7 if its
  sums are computed in float64, 7e-4 in float32, 3e-2 in bfloat16;
- 4 units in the last place of its own type.

Whole numbers, truth values and keys must be equal. Nothing of one leaf enters the tolerance of another.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.reference_program import Reference, leaves_of, unit_of
from pmapdp.verify.report import ArgumentsError
from pmapdp.verify.trees import Leaves

SEEDS = 3
OF_THE_SPREAD = UNITS = 4  # of a leaf in a type narrower than float32 the half, for it is rounded when it is stored
LOOSE, BLIND = 0.05, 0.3  # tolerance as a fraction of a leaf's change: reported, and not compared
STILL = 1e-6  # of the largest change of the state: what changes less, and only by rounding, stands still


class Allowed(NamedTuple):
    """How far a leaf may be off."""

    tolerance: float
    change: float  # its own in the update; of a metric its size
    kind: str  # "exact", "close", "loose", "still" (rounding alone moves it) or "blind" (not compared)


class Update(NamedTuple):
    """One update of the reference, in host arrays as one device has them."""

    state: Any
    batch: Any
    key: tuple[Any, ...]  # of one, or empty where there is none
    values: dict[str, Leaves]  # what it returned: the "state", with a new key, and the "metrics"
    allowed: dict[str, dict[str, Allowed]]  # for the step, from the same state
    in_a_row: dict[str, dict[str, Allowed]]  # for the step, from the state of its own update before
    axis: int  # of the examples in the batch

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As the reference takes them."""
        return self.state, self.batch, *self.key

    @property
    def examples(self) -> int:
        """Number of examples in the batch; 0 where there is none."""
        leaves = jax.tree.leaves(self.batch)
        return np.shape(leaves[0])[self.axis] if leaves else 0


def reference_updates(
    reference: Reference, state: Any, batches: list[Any], keys: Sequence[tuple], axis: int, ignored: Callable
) -> list[Update]:
    """The reference's updates, one on each batch; `ignored(name)` says which leaves are not compared."""
    updates: list[Update] = []
    chains = [(state, None)] * SEEDS  # the same updates with other rounding, each from its own state
    carried = None  # a key that the update before returned
    start = trees.values(state)
    for number, (batch, key) in enumerate(zip(batches, keys, strict=True)):
        key = key if carried is None else (carried,)
        arguments = (state, batch, *key)
        new = reference.raw(arguments)
        values = leaves_of(new)
        if any(np.isnan(value).any() for value in values["state"].values() if value.dtype.kind in "fc"):
            raise ArgumentsError(f"update {number + 1} of the reference returns NaN in the state: give it other data")
        units = sum_units(reference, arguments, new)
        local = rows = [reference.rounded(arguments, seed) for seed in range(SEEDS)]
        if updates:  # before, all start from the same state
            rows = [
                reference.rounded((old, batch, *(key if own is None else (own,))), seed)
                for seed, (old, own) in enumerate(chains)
            ]
        old = trees.values(state)
        updates.append(
            Update(
                state, batch, key, values,
                allowed(new, old, values, [leaves_of(row) for row in local], units, ignored),
                allowed(new, start, values, [leaves_of(row) for row in rows], units, ignored), axis,
            )
        )  # fmt: skip
        state, carried = new["state"], new.get("key")
        chains = [(row["state"], row.get("key")) for row in rows]
    return updates


def sum_units(reference: Reference, arguments: tuple, new: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The same by leaf of the state and of the metrics."""
    program, _ = reference.program(arguments)
    unit = unit_of(program)
    flat = jax.tree.unflatten(jax.tree.structure(new), [unit.get(value, 0.0) for value in program.outputs])
    return {part: trees.named(flat[part]) for part in ("state", "metrics")}


def allowed(
    new: dict[str, Any], old: Leaves, values: dict[str, Leaves], others: list[dict[str, Leaves]],
    units: dict[str, dict[str, float]], ignored: Callable[[str], bool],
) -> dict[str, dict[str, Allowed]]:  # fmt: skip
    """How far each leaf may be off.

    Args:
        new: what the reference returned.
        old: leaves of the state to which the new one is compared for its change.
        values: the leaves of what it returned.
        others: the same with other rounding.
        units: of the sums on the way to each leaf.
        ignored: which leaves are not compared.
    """
    found: dict[str, dict[str, Allowed]] = {}
    for part, after in values.items():
        types = {name: leaf for name, leaf in trees.named(new[part]).items()}
        found[part] = {}
        for name, value in after.items():
            spread = max(trees.distance(other[part][name], value) for other in others)
            before = old.get(name) if part == "state" else None
            if ignored(name):
                found[part][name] = Allowed(np.inf, 0.0, "blind")
            elif value.dtype.kind not in "fc":
                found[part][name] = Allowed(0.0, 0.0, "blind" if spread else "exact")
            else:
                moved = value - before if before is not None and before.shape == value.shape else value
                finite = np.isfinite(size := trees.largest(moved))
                unit, own = units[part].get(name, 0.0), float(jnp.finfo(jnp.result_type(types[name])).eps)
                times = 1.0 if own < 1e-6 else 0.5
                fraction = unit**0.45 if unit < 1e-6 else 4 * unit if times == 1 else 0.0
                last = UNITS * times * own * max(trees.largest(value), size)
                tolerance = OF_THE_SPREAD * times * spread + fraction * size + last if finite else 0.0
                if times != 1:  # stored coarsely, whatever it changes by: it is judged beside its own size
                    size = max(size, trees.largest(value))
                found[part][name] = Allowed(tolerance, size if finite else 0.0, "close")
    largest = max((each.change for each in found["state"].values()), default=0.0)
    return {
        part: {name: judged(each, part, largest) for name, each in leaves.items()} for part, leaves in found.items()
    }


def judged(leaf: Allowed, part: str, largest: float) -> Allowed:
    """The kind of a leaf, by its tolerance beside its own change."""
    if leaf.kind != "close" or leaf.tolerance <= LOOSE * leaf.change or leaf.change == 0:
        return leaf
    if leaf.tolerance <= BLIND * leaf.change:
        return leaf._replace(kind="loose")
    return leaf._replace(kind="still" if part == "state" and leaf.change < STILL * largest else "blind")
