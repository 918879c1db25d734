"""Measure what rounding does to the reference, and decide what counts as equal.

Three more runs of the reference tell rounding from mistakes. They begin with numbers
changed by one unit in the last place of the narrowest type in which the reference adds.
A leaf's error may be the sum of

- a multiple of the leaf's largest change in these runs,
- a fraction of the leaf's change in the update, because two formulas for the same thing
  may differ by more than rounding,
- some units in the leaf's own last place.

Whole numbers, truth values and keys must be equal.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from pmapdp.verify import trees
from pmapdp.verify.reference import Reference
from pmapdp.verify.report import ArgumentsError
from pmapdp.verify.thresholds import (
    LAST_PLACES,
    NARROW_LAST_PLACES,
    NARROW_PERTURBATION,
    NARROW_TOLERANCES,
    NEGLIGIBLE_FRACTION,
    PERTURBED_RUNS,
    TOLERANCES,
    UNSTABLE_FRACTION,
)
from pmapdp.verify.trees import Leaves, distance, first_names

# Operations that add numbers, whose order decides the rounding.
SUMS = (
    "dot_general",
    "conv_general_dilated",
    "reduce_sum",
    "cumsum",
    "psum",
    "reduce_window_sum",
    "scatter-add",
)


@dataclass
class ReferenceLeaf:
    """A leaf that the reference returned, and the error that the step's leaf may have.

    Attributes:
        name: Its path.
        is_metric: It's a metric, and no leaf of the state.
        old: Its value before the update, 0 for a metric.
        value: Its value after the update.
        kind: "close" if it's compared within rounding, and "exact" if without. A leaf
            that is "unstable" isn't compared, because rounding decides it. A leaf that
            is "per_device" isn't compared, because each device has its own.
        change: How far a "close" leaf moves in the update.
        allowed: The largest error that is rounding.
    """

    name: str
    is_metric: bool
    old: np.ndarray
    value: np.ndarray
    kind: str
    change: float = 0.0
    allowed: float = 0.0

    @property
    def is_compared(self) -> bool:
        """Return True if the step's leaf has to equal this one."""
        return self.kind in ("close", "exact")


class ReferenceUpdate(NamedTuple):
    """One update of the reference, in arrays of the host.

    Attributes:
        number: The number of the update, from 0.
        state: The state before the update.
        batch: The batch, or None.
        key: The random key, or None.
        leaves: The leaves of the new state and the metrics, by path.
        batch_axis: The axis of the examples in the batch.
        previous: The update before it, or None.
    """

    number: int
    state: Any
    batch: Any
    key: Any
    leaves: dict[str, ReferenceLeaf]
    batch_axis: int
    previous: "ReferenceUpdate | None"

    @property
    def examples(self) -> int:
        """The number of examples in the batch, or 0 without a batch."""
        leaves = jax.tree.leaves(self.batch)
        if not leaves:
            return 0
        return np.shape(leaves[0])[self.batch_axis]

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments of step and reference: state, batch and key."""
        return self.state, self.batch, self.key

    @property
    def values(self) -> Leaves:
        """The values of all leaves after the update."""
        return {name: leaf.value for name, leaf in self.leaves.items()}

    def select_examples(self, index: np.ndarray) -> Any:
        """Return a batch of the examples at `index`."""
        all_axes = (*[slice(None)] * self.batch_axis, index)
        return jax.tree.map(lambda leaf: leaf[all_axes], self.batch)  # keys, too


def make_updates(
    reference: Reference,
    state: Any,
    batches: list[Any],
    keys: list[Any],
    narrowest: np.dtype,
) -> list[ReferenceUpdate]:
    """Make an update of the reference on each batch, and measure its rounding.

    Raises:
        ArgumentsError: A result is NaN, which nothing equals.
    """
    updates: list[ReferenceUpdate] = []
    previous = None
    for number, (batch, key) in enumerate(zip(batches, keys, strict=True)):
        arguments = (state, batch, key)
        new = reference.run(arguments)
        leaves = measure_leaves(reference, arguments, new, narrowest)
        refuse_nan(leaves, number)
        previous = ReferenceUpdate(
            number, *arguments, leaves, reference.batch_axis, previous
        )
        updates.append(previous)
        state = new["state"]
    return updates


def measure_leaves(
    reference: Reference, arguments: tuple, new: dict[str, Any], narrowest: np.dtype
) -> dict[str, ReferenceLeaf]:
    """Run an update with numbers changed by rounding, and measure how its leaves move.

    Args:
        reference: The reference.
        arguments: State, batch and key of the update.
        new: The "state" and the "metrics" that the reference made of them.
        narrowest: The narrowest type in which the reference adds.
    """
    state, batch, key = arguments
    size = float(jnp.finfo(narrowest).eps)
    if narrowest.itemsize < 4:
        size *= NARROW_PERTURBATION
    perturbed_results = []
    for seed in range(PERTURBED_RUNS):
        near_state, near_batch = perturb((state, batch), size, seed)
        perturbed_results.append(reference((near_state, near_batch, key)))
    old = reference.to_numpy({"state": state, "metrics": {}})
    leaves = {}
    for name, array in reference.leaves(new).items():
        value = trees.to_numpy(array)
        leaf = ReferenceLeaf(
            name=name,
            is_metric=name.startswith(reference.metric_prefix),
            old=old.get(name, np.zeros(())),
            value=value,
            kind="close",
        )
        spread = max(distance(result[name], value) for result in perturbed_results)
        if reference.is_per_device(name) and reference.groups == 1:
            leaf.kind = "per_device"
        elif np.issubdtype(value.dtype, np.inexact):
            allow_rounding(leaf, spread, array.dtype, narrowest)
        elif spread:
            leaf.kind = "unstable"
        else:
            leaf.kind = "exact"
        leaves[name] = leaf
    mark_unstable(list(leaves.values()))
    return leaves


def refuse_nan(leaves: dict[str, ReferenceLeaf], number: int) -> None:
    """Raise an error if a leaf that has to be compared is NaN."""
    names = []
    for name, leaf in leaves.items():
        if leaf.is_compared and np.isnan(leaf.value).any():
            names.append(name)
    if names:
        raise ArgumentsError(
            f"{first_names(names)} is NaN after update {number + 1} in the reference, "
            "and nothing equals NaN: give a state and data with which it is a number"
        )


def allow_rounding(
    leaf: ReferenceLeaf, spread: float, stored: np.dtype, narrowest: np.dtype
) -> None:
    """Set how far a leaf of floats moves, and how large its error may be.

    Args:
        leaf: The leaf. If it isn't finite, no error is allowed.
        spread: Its largest change in the perturbed runs.
        stored: The type in which the reference returns it.
        narrowest: The narrowest type in which the reference adds.
    """
    if not np.isfinite(leaf.value).all():
        return
    change = distance(leaf.value, leaf.old)
    size = max(distance(leaf.value), change)
    factors = TOLERANCES.get(narrowest.itemsize, NARROW_TOLERANCES)
    fraction = factors.change
    if narrowest.itemsize < 4:
        fraction *= float(jnp.finfo(narrowest).eps)
    leaf.change = change
    places = LAST_PLACES
    if stored.itemsize < 4:
        # Momentum in bfloat16, for example, is rounded by a fraction of its size.
        leaf.change = size
        places = NARROW_LAST_PLACES
    last_places = places * float(jnp.finfo(stored).eps) * size
    leaf.allowed = factors.spread * spread + fraction * change + last_places


def mark_unstable(leaves: list[ReferenceLeaf]) -> None:
    """Mark the leaves that rounding decides as unstable.

    An unmoved leaf of the state is still compared, with a wider tolerance.
    """
    state_changes = [leaf.change for leaf in leaves if not leaf.is_metric]
    smallest = NEGLIGIBLE_FRACTION * max(state_changes, default=0.0)
    for leaf in leaves:
        if leaf.allowed > UNSTABLE_FRACTION * leaf.change > 0:
            leaf.allowed = max(leaf.allowed, smallest)
            if leaf.is_metric or leaf.change >= smallest:
                leaf.kind = "unstable"


def perturb(tree: Any, size: float, seed: int) -> Any:
    """Change every float by up to `size` of itself.

    Floats that are whole numbers stay, because they are counts, weights and labels.
    """
    random = np.random.default_rng(seed)

    def change(leaf: Any) -> Any:
        if not trees.is_float(leaf):
            return leaf
        factor = 1 + size * random.uniform(-1, 1, np.shape(leaf))
        changed = np.asarray(leaf * factor, leaf.dtype)
        return np.where(leaf == np.round(leaf), leaf, changed)

    return jax.tree.map(change, tree)


def iterate_equations(jaxpr: Any) -> Iterator[Any]:
    """Yield every operation of a traced program, and of the programs that it calls."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from iterate_equations(inner)


def narrowest_type(traced: Any) -> np.dtype:
    """Return the narrowest type in which a program adds, or to which it rounds float64.

    Without either, it's float64.
    """
    dtypes: set[np.dtype] = {np.dtype(np.float64)}
    for equation in iterate_equations(traced.jaxpr.jaxpr):
        name = equation.primitive.name
        is_cast = name == "convert_element_type"
        is_rounded = is_cast and equation.invars[0].aval.dtype == np.float64
        if name not in SUMS and not is_rounded:
            continue
        for variable in (*equation.invars, *equation.outvars):
            if jnp.issubdtype(variable.aval.dtype, jnp.inexact):
                # A complex number consists of two floats.
                dtypes.add(np.dtype(jnp.finfo(variable.aval.dtype).dtype))
    return max(dtypes, key=lambda dtype: float(jnp.finfo(dtype).eps))
