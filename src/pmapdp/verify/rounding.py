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

Leaves = dict[str, np.ndarray]  # the leaves of a tree by their path


class Update(NamedTuple):
    """One update of the reference, in host arrays as one device has them."""

    state: Any
    batch: Any
    key: tuple[Any, ...]  # of one, or empty where there is none
    values: dict[str, Leaves]  # what it returned: the "state" and the "metrics"
    tolerance: dict[str, dict[str, float]]  # how far a leaf may be off: of all but keys and their counters

    @property
    def arguments(self) -> tuple[Any, ...]:
        """As the functions take them."""
        return self.state, self.batch, *self.key

    @property
    def examples(self) -> int:
        """Number of examples in the batch."""
        return trees.number_of_examples(self.batch)


def reference_updates(reference: Callable, state: Any, batches: list[Any], keys: Sequence[tuple]) -> list[Update]:
    """The reference's updates, one on each batch."""
    eps = float(jnp.finfo(coarsest_type(reference, (state, batches[0], *keys[0]))).eps)

    starts = [(state, batches), *(nudge((state, batches), eps, seed) for seed in range(NUDGES))]
    states, updates = [start for start, _ in starts], []
    for number, key in enumerate(keys):
        inputs = [(old, own[number], *key) for old, (_, own) in zip(states, starts, strict=True)]
        new, *others = (call_reference(reference, arguments) for arguments in inputs)
        values = {part: trees.values(tree) for part, tree in new.items()}
        if any(np.isnan(value).any() for value in values["state"].values()):
            raise ArgumentsError(f"update {number + 1} of the reference returns NaN in the state: give it other data")
        tolerance = {}
        for part, old in (("state", trees.values(states[0])), ("metrics", {})):
            tolerance[part] = tolerances(old, new[part], [trees.values(other[part]) for other in others], eps)
        updates.append(Update(states[0], batches[number], key, values, tolerance))
        states = [each["state"] for each in (new, *others)]
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


def tolerances(old: Leaves, new: Any, nudged: Sequence[Leaves], eps: float) -> dict[str, float]:
    """How far each leaf may be off.

    Args:
        old: leaves before the update; none for metrics.
        new: tree after the update.
        nudged: its leaves, from state and batch that were changed in their last place.
        eps: rounding unit in which the reference computes.
    """
    after = trees.values(new)
    change = {name: trees.largest(value - old.get(name, 0)) for name, value in after.items()}
    largest = max((size for size in change.values() if np.isfinite(size)), default=0.0) if old else 0.0
    found: dict[str, float] = {}
    for name, leaf in trees.named(new).items():
        if trees.is_random(leaf):
            continue
        found[name] = 0.0
        if trees.is_float(leaf) and np.isfinite(size := max(trees.largest(after[name]), change[name])):
            unit = float(jnp.finfo(jnp.result_type(leaf)).eps)
            spread = max(trees.distance(other[name], after[name]) for other in nudged)
            of_change = max(eps, unit) ** 0.45 * change[name]
            found[name] = OF_THE_SPREAD * spread + of_change + UNITS * unit * (size + largest)
    return found


def coarsest_type(reference: Callable, arguments: tuple) -> np.dtype:
    """The coarsest type in which the reference makes matrix products or returns numbers of its state."""
    state = trees.parts_of(jax.eval_shape(reference, *arguments), "the reference")["state"]
    found = {jnp.dtype(TYPES[name]) for name in NARROW_PRODUCT.findall(program_text(reference, arguments))}
    found |= {leaf.dtype for leaf in jax.tree.leaves(state) if trees.is_float(leaf)}
    return max(found, key=lambda dtype: float(jnp.finfo(dtype).eps), default=jnp.dtype("float64"))


def program_text(function: Callable, arguments: Sequence[Any]) -> str:
    """The jaxpr of a function, as JAX prints it."""
    try:
        return str(jax.make_jaxpr(function)(*arguments))
    except Exception:  # it needs the values of its arguments outside JAX, as numpy.asarray does
        return str(jax.make_jaxpr(lambda: function(*arguments))())
