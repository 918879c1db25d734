"""Tell rounding from mistakes: the reference's updates, and how far each leaf of a step may be off.

The reference runs three times more, from numbers that are changed by one unit in the last place of the narrowest type
in which it adds numbers, or by an eighth of one if it is narrower than float32: then an eighth of the numbers is
rounded the other way. The largest change of a leaf is its spread. A leaf may be off by the sum of

- 8 times its spread if its sums are computed in float64, 4 times in float32, 2 times in a narrower type;
- a fraction of its own change in the update, for formulas that differ by more than rounding at the start: 1e-7 in
  float64, 7e-4 in float32, 3e-2 in bfloat16;
- 4 units in the last place of its own type, 2 of a type narrower than float32.

Whole numbers, truth values and keys must be equal. Nothing of one leaf enters the tolerance of another.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from pmapdp.verify import trees
from pmapdp.verify.reference import Reference
from pmapdp.verify.report import ArgumentsError
from pmapdp.verify.trees import Leaves

SUMS = ("dot_general", "conv_general_dilated", "reduce_sum", "cumsum", "psum", "reduce_window_sum", "scatter-add")
SEEDS = 3
BLIND = 0.3  # tolerance as a fraction of a leaf's change: more is not compared
STILL = 1e-6  # of the largest change of the state: what changes less, and only by rounding, stands still


class Allowed(NamedTuple):
    """The distance that a leaf may be off."""

    tolerance: float
    change: float  # its own in the update; of a metric its size
    kind: str = "close"  # or "exact"; "blind", for rounding hides it, or "ignored", for it belongs to a device


class Update(NamedTuple):
    """One update of the reference, in host arrays as one device has them."""

    number: int  # from 0
    state: Any
    batch: Any
    key: tuple[Any, ...]  # of one, or empty
    values: Leaves  # what it returned: the new state and the metrics
    allowed: dict[str, Allowed]
    axis: int  # of the examples in the batch

    @property
    def arguments(self) -> tuple[Any, ...]:
        """State, batch and key."""
        return self.state, self.batch, *self.key

    @property
    def examples(self) -> int:
        """Number of examples in the batch; 0 without a batch."""
        leaves = jax.tree.leaves(self.batch)
        return np.shape(leaves[0])[self.axis] if leaves else 0

    def rows(self, index: Any) -> Any:
        """Return the examples at `index`, a slice or integers."""
        return jax.tree.map(lambda leaf: leaf[(slice(None),) * self.axis + (index,)], self.batch)


def reference_updates(
    reference: Reference, state: Any, batches: list[Any], keys: Sequence[tuple], narrowest: np.dtype
) -> list[Update]:
    """Make the reference's updates, one on each batch, with the tolerance of every leaf.

    Raises:
        ArgumentsError: the reference returns not-a-number, with which nothing can be compared.
    """
    updates = []
    unit = float(jnp.finfo(narrowest).eps) / (1 if narrowest.itemsize >= 4 else 8)
    for number, (batch, key) in enumerate(zip(batches, keys, strict=True)):
        new = trees.to_host(reference.jitted(state, batch, *key))
        others = [reference((nudge(state, unit, n), nudge(batch, unit, n + SEEDS), *key)) for n in range(SEEDS)]
        allowed, values = tolerances(reference, state, new, others, narrowest), reference.values(new)
        for name, value in values.items():
            if value.dtype.kind == "f" and np.isnan(value).any() and allowed[name].kind != "ignored":
                raise ArgumentsError(
                    f"{name} is NaN after update {number + 1}, in the reference too, and nothing can be compared with "
                    f"NaN: give a state and data with which it is a number"
                )
        updates.append(Update(number, state, batch, key, values, allowed, reference.axis))
        state = new["state"]
    return updates


def nudge(tree: Any, unit: float, seed: int) -> Any:
    """Change every number by up to `unit` of itself; not whole numbers, which are counts, weights and labels."""
    random = np.random.default_rng(seed)

    def change(leaf: Any) -> Any:
        if not trees.is_float(leaf):
            return leaf
        changed = np.asarray(leaf * (1 + unit * random.uniform(-1, 1, np.shape(leaf))), leaf.dtype)
        return np.where(leaf == np.round(leaf), leaf, changed)

    return jax.tree.map(change, tree)


def tolerances(
    reference: Reference, state: Any, new: dict[str, Any], others: list[Leaves], narrowest: np.dtype
) -> dict[str, Allowed]:
    """Return how far each leaf of the state and of the metrics may be off.

    Args:
        state: the old one, and `new` what the reference made of it.
        others: the same from nudged numbers.
        narrowest: type in which the reference adds numbers.
    """
    found: dict[str, Allowed] = {}
    old, times = trees.values(state), {8: 8, 4: 4}.get(narrowest.itemsize, 2)
    fraction = {8: 1e-7, 4: 7e-4}.get(narrowest.itemsize, 4 * float(jnp.finfo(narrowest).eps))
    for name, leaf in reference.leaves(new).items():
        value = trees.numbers(leaf)
        spread = max(trees.distance(other[name], value) for other in others)
        if reference.groups <= 1 and reference.is_own(name):
            found[name] = Allowed(np.inf, 0.0, "ignored")
        elif value.dtype.kind != "f":
            found[name] = Allowed(0.0, 0.0, "blind" if spread else "exact")
        elif not np.isfinite(value).all():
            found[name] = Allowed(0.0, 0.0)
        else:
            size, unit = trees.distance(value), float(jnp.finfo(leaf.dtype).eps)
            change = size if reference.is_metric(name) else trees.distance(value, old[name])
            tolerance = times * spread + fraction * change + (4 if unit < 1e-6 else 2) * unit * max(size, change)
            # What is stored in a narrow type is judged by its size, because it is rounded to that.
            found[name] = Allowed(tolerance, change if unit < 1e-6 else max(size, change))
    still = STILL * max((most.change for name, most in found.items() if not reference.is_metric(name)), default=0.0)
    for name, most in found.items():
        if most.kind == "close" and most.tolerance > BLIND * most.change > 0:
            stands = not reference.is_metric(name) and most.change < still  # as rounding makes of a gradient of 0
            found[name] = Allowed(max(most.tolerance, still), np.inf) if stands else most._replace(kind="blind")
    return found


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield every operation of a traced program, also of the programs in it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def narrowest_sum(reference: Reference, arguments: tuple) -> np.dtype:
    """Return the narrowest type in which the reference adds numbers, or returns what it was given in a wider one."""
    program, new = jax.make_jaxpr(reference.whole, return_shape=True)(*arguments)
    sums = [each for each in equations(program.jaxpr) if each.primitive.name in SUMS]
    found = {variable.aval.dtype for each in sums for variable in (*each.invars, *each.outvars)}
    pairs = zip(jax.tree.leaves(arguments[0]), jax.tree.leaves(new["state"]), strict=True)
    found |= {new.dtype for old, new in pairs if not trees.is_key(new) and new.dtype != jnp.result_type(old)}
    floats = [dtype for dtype in found if jnp.issubdtype(dtype, jnp.floating)]
    return np.dtype(max(floats, key=lambda dtype: float(jnp.finfo(dtype).eps), default=np.float64))
