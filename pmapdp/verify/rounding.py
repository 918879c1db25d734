"""The reference's updates, and how far the step may be off: rounding is told from mistakes by the reference's spread.

The program computes in float64 where it keeps that type. A difference is a mistake if it is larger than the tolerance
of its leaf, the sum of

- 20 times the spread: the largest change of the leaf when the numbers of state and batch change in their last place,
  up or down at random (whole numbers stay, because they may count or index);
- a fraction of the leaf's own change in an update, for formulas that differ by more than rounding at the start: 1e-7 if
  the reference computes in float64, 7e-4 in float32, a tenth in bfloat16;
- 64 units in the last place of the values, and of the largest change of any leaf, because a gradient that should be
  zero consists of their rounding.

So float64 sees mistakes of a relative 1e-7, and float32 those above 1 in 1,000. Devices change the order in which
examples are added, but the spread is not that of a permuted batch: a reference that draws a mask for the batch, or
accumulates over its parts, returns something else for a permuted batch, and in float32 nothing tells whether the order
or rounding did it. Where the order changes rounding alone, the tolerance covers it, which a test shows. Its limit: a
step whose rounding is coarser than its reference's, because it computes in a narrower type, seems to be wrong.
"""

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.report import ArgumentsError

NUDGES = 3
OF_THE_SPREAD = 20
UNITS = 64
NARROW_PRODUCT = re.compile(r"\b(f32|f16|bf16)\[\S* = (?:dot_general|conv_general_dilated)\[")
TYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


class Expected(NamedTuple):
    """What an update must return, by leaf of the state or of the metrics."""

    values: dict[str, np.ndarray]
    tolerance: dict[str, float]

    def differences(self, copies: dict[str, list[np.ndarray]]) -> dict[str, tuple[float, float]]:
        """How far each leaf is off, on the device where it is farthest, and what rounding allows."""
        values = self.values.items()
        return {name: (max(trees.distance(x, y) for x in copies[name]), self.tolerance[name]) for name, y in values}


class Update(NamedTuple):
    """One update of the reference, in host arrays as one device has them."""

    arguments: tuple[Any, ...]  # state, batch, and the key where there is one
    new: dict[str, Any]  # the "state" and the "metrics" that it returned
    want: dict[str, Expected]  # the same by leaf, with tolerances

    @property
    def examples(self) -> int:
        """Number of examples in the batch."""
        return trees.number_of_examples(self.arguments[1])


def reference_updates(reference: Callable, state: Any, batches: Sequence[Any], keys: Sequence[tuple]) -> list[Update]:
    """The reference's updates, one on each batch."""
    eps = float(jnp.finfo(coarsest_type(reference, (state, batches[0], *keys[0]))).eps)

    def chain(state: Any, batches: Sequence[Any]) -> list[tuple[tuple, dict[str, Any]]]:
        done = []
        for batch, key in zip(batches, keys, strict=True):
            arguments = (state, batch, *key)
            done.append((arguments, call_reference(reference, arguments)))
            state = done[-1][1]["state"]
        return done

    others = [chain(*nudge((state, list(batches)), eps, seed)) for seed in range(NUDGES)]
    updates: list[Update] = []
    for number, (arguments, new) in enumerate(chain(state, batches)):
        if any(np.isnan(value).any() for value in trees.values(new["state"]).values()):
            raise ArgumentsError(f"update {number + 1} of the reference returns NaN in the state: give it other data")
        old = {"state": trees.values(arguments[0]), "metrics": {}}
        nudged = {part: [other[number][1][part] for other in others] for part in new}
        want = {part: expected(old[part], new[part], nudged[part], eps) for part in new}
        updates.append(Update(arguments, new, want))
    return updates


def call_reference(reference: Callable, arguments: tuple) -> dict[str, Any]:
    """New state and metrics of one device, on the host."""
    return trees.parts_of(trees.to_host(reference(*trees.to_host(arguments))), "the reference")


def nudge(tree: Any, eps: float, seed: int) -> Any:
    """The tree with every fraction changed in its last place, up or down."""
    random = np.random.default_rng(seed)

    def change(leaf: Any) -> Any:
        if not trees.is_float(leaf):
            return leaf
        leaf = np.asarray(leaf)
        unit = max(eps, float(jnp.finfo(leaf.dtype).eps))
        moved = leaf * (1 + unit * random.choice([-1, 1], leaf.shape))
        return np.where(leaf == np.round(leaf), leaf, moved).astype(leaf.dtype)

    return jax.tree.map(change, tree)


def expected(old: dict[str, np.ndarray], new: Any, nudged: Sequence[Any], eps: float) -> Expected:
    """What the step must return, given what its reference returns.

    Args:
        old: leaves before the update; none for metrics.
        new: tree after the update.
        nudged: the same from state and batch that were changed in their last place.
        eps: rounding unit in which the reference computes.
    """
    after, spreads = trees.values(new), [trees.values(tree) for tree in nudged]
    change = {name: trees.largest(value - old.get(name, 0)) for name, value in after.items()}
    largest = max((size for size in change.values() if np.isfinite(size)), default=0.0) if old else 0.0
    tolerance = dict.fromkeys(after, 0.0)
    for name, leaf in trees.named(new).items():
        if trees.is_float(leaf) and np.isfinite(size := max(trees.largest(after[name]), change[name])):
            unit = float(jnp.finfo(jnp.result_type(leaf)).eps)
            spread = max(trees.distance(other[name], after[name]) for other in spreads)
            of_change = max(eps, unit) ** 0.45 * change[name]
            tolerance[name] = OF_THE_SPREAD * spread + of_change + UNITS * unit * (size + largest)
    compared = {name: after[name] for name, leaf in trees.named(new).items() if not trees.is_random(leaf)}
    return Expected(compared, tolerance)


def coarsest_type(reference: Callable, arguments: tuple) -> np.dtype:
    """The coarsest type in which the reference makes matrix products or returns numbers of its state."""
    state = trees.parts_of(jax.eval_shape(reference, *arguments), "the reference")["state"]
    found = {jnp.dtype(TYPES[name]) for name in NARROW_PRODUCT.findall(program_text(reference, arguments))}
    found |= {leaf.dtype for leaf in jax.tree.leaves(state) if trees.is_float(leaf)}
    return max(found, key=lambda dtype: float(jnp.finfo(dtype).eps), default=jnp.dtype("float64"))


def program_text(function: Callable, arguments: Sequence[Any]) -> str:
    """The jaxpr of a function, as JAX prints it."""
    return str(jax.make_jaxpr(function)(*arguments))
