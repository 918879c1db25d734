"""The reference's updates, and how far each leaf of a step may be off.

The program computes in float64 where it keeps that type. Every update starts from the reference's state. The reference
runs again, three times, with other rounding wherever numbers are added or are stored in a narrow type (`Rounding`); the
largest change of a leaf is its spread. A leaf may be off by the sum of

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
from jax.extend.core import jaxprs_in_params

from pmapdp.verify import trees
from pmapdp.verify.program import SUMS, Program, Rounding, evaluate, trace
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


class Reference:
    """The plain step, as a function of (state, batch, key) that names what it returns, and its programs."""

    def __init__(self, function: Callable[..., dict[str, Any]], whole: bool = False):
        self.function, self.jitted = function, jax.jit(function)
        self.whole = whole  # whether it cuts the batch into groups itself, so that a part of it means something else
        self.known: dict[tuple, Any] = {}

    def once(self, what: str, arguments: tuple, make: Callable[[], Any]) -> Any:
        """What `make` returns, made once for arguments of these shapes and types."""
        leaves = map(trees.plain, jax.tree.leaves(arguments))
        form = (what, jax.tree.structure(arguments), *((np.shape(x), jnp.result_type(x)) for x in leaves))
        if form not in self.known:
            self.known[form] = make()
        return self.known[form]

    def compiled(self, arguments: tuple) -> Any:
        """The compiled program for arguments of these shapes."""
        return self.once("compiled", arguments, lambda: self.jitted.lower(*arguments).compile())

    def __call__(self, arguments: tuple) -> dict[str, Leaves]:
        """The leaves of the new state and of the metrics, on the host."""
        return leaves_of(self.raw(arguments))

    def raw(self, arguments: tuple) -> dict[str, Any]:
        """State, metrics and key as trees on the host."""
        return trees.to_host(self.compiled(arguments)(*trees.to_host(arguments)))

    def program(self, arguments: tuple) -> tuple[Program, Any]:
        """The traced program for arguments of these shapes, and the form of what it returns."""
        return self.once("traced", arguments, lambda: trace(self.function, *arguments))

    def coarsest_type(self, arguments: tuple) -> np.dtype:
        """The coarsest type in which it adds numbers, or returns what it was given in a finer one."""
        program, returned = self.program(arguments)
        pairs = zip(jax.tree.leaves(arguments[0]), jax.tree.leaves(returned["state"]), strict=True)
        kept = [new.dtype for old, new in pairs if trees.is_float(new) and new.dtype != jnp.result_type(old)]
        units = set(unit_of(program).values())
        found = [dtype for dtype in map(np.dtype, FLOATS) if float(jnp.finfo(dtype).eps) in units] + kept
        return max(found, key=lambda dtype: float(jnp.finfo(dtype).eps), default=np.dtype(np.float64))

    def rounded(self, arguments: tuple, seed: int) -> dict[str, Any]:
        """What it returns with other rounding."""
        program, returned = self.program(arguments)

        def run(seed: Any, *flat: Any) -> list[Any]:
            known = dict(zip(program.inputs, flat, strict=True))
            return evaluate(program, known, program.outputs, Rounding(seed))

        jitted = self.once("rounded", arguments, lambda: jax.jit(run))
        found = jitted(np.uint32(seed * 977 + 1), *jax.tree.leaves(trees.to_host(arguments)))
        return trees.to_host(jax.tree.unflatten(jax.tree.structure(returned), found))


def leaves_of(returned: dict[str, Any]) -> dict[str, Leaves]:
    """The leaves of the "state", with a new key that was returned, and of the "metrics"."""
    state = {name: trees.numbers(leaf) for name, leaf in trees.with_key(returned).items()}
    return {"state": state, "metrics": trees.values(returned["metrics"])}


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
        local = [leaves_of(reference.rounded(arguments, seed)) for seed in range(SEEDS)]
        rows = [
            reference.rounded((old, batch, *(key if own is None else (own,))), seed)
            for seed, (old, own) in enumerate(chains)
        ]
        old = trees.values(state)
        updates.append(
            Update(
                state, batch, key, values,
                allowed(new, old, values, local, units, ignored),
                allowed(new, start, values, [leaves_of(row) for row in rows], units, ignored), axis,
            )
        )  # fmt: skip
        state, carried = new["state"], new.get("key")
        chains = [(row["state"], row.get("key")) for row in rows]
    return updates


FLOATS = (jnp.float64, jnp.float32, jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2)


def unit_of(program: Program) -> dict[int, float]:
    """For each value the unit of the coarsest type in which numbers are added on the way to it; 0 where none are."""
    unit: dict[int, float] = {}

    def own(equation: Any) -> float:
        counts = equation.primitive.name in SUMS
        types = [v.aval.dtype for v in (*equation.invars, *equation.outvars) if hasattr(v.aval, "dtype")]
        units = [jnp.finfo(t) for t in types if jnp.issubdtype(t, jnp.inexact)]
        inner = (own(each) for jaxpr in jaxprs_in_params(equation.params) for each in jaxpr.eqns)
        return max([float(each.eps) for each in units if counts] + list(inner), default=0.0)

    for each in program.operations:
        found = max([own(each.equation), *(unit.get(value, 0.0) for value in each.inputs)])
        unit.update(dict.fromkeys(each.outputs, found))
    return unit


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
