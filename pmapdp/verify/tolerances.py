"""Measure what rounding does to the reference, and decide what counts as equal.

Three more runs tell rounding from mistakes, from numbers changed by one unit in the
last place of the narrowest type in which the reference adds. A leaf may be off by a
multiple of its largest change in these runs, plus a fraction of its own change in the
update, for formulas that differ by more than rounding, plus some units in its own last
place. Whole numbers, truth values and keys must be equal.

What counts as equal, and what as a prediction, is decided here alone. Limits that only
choose a sentence of the report stand where the sentence is made.
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
from pmapdp.verify.trees import Leaves, distance, first_names

# Equal within rounding, by the bytes of the narrowest type: how many times the measured
# change a leaf may be off, and which fraction of its change in the update. Three runs
# don't show the largest change, and in float64 there is room for more.
TOLERANCES = {8: (8, 1e-7), 4: (4, 7e-4)}
# The largest error of a prediction, as a fraction of the difference that it explains. A
# prediction that holds misses by rounding, which is below a thousandth of an update,
# also in float32. One that doesn't hold misses by about the difference itself.
PREDICTS = 1e-3
# A difference is clearly wrong if it's this many times what rounding allows. A smaller
# one can't tell two predictions apart.
CLEARLY_WRONG = 10
# A leaf of which rounding may change this fraction of its update is not compared: what
# a chaotic map returns, or the bias in front of a batch norm under Adam.
UNSTABLE = 0.3
# A leaf that changes by less than this fraction of the state's largest change has a
# gradient of 0, and rounding moves it: the bias in front of a batch norm under SGD.
STANDS_STILL = 1e-6
RUNS = 3  # with numbers changed by rounding
# Operations that add numbers, so that rounding depends on their order.
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
    """A leaf that the reference returned, and how far the step's may be off.

    Attributes:
        name: Its path.
        is_metric: It's a metric, and no leaf of the state.
        old: Its value before the update, 0 for a metric.
        value: Its value after the update.
        kind: "close" and "exact" are compared; "unstable" is not, because rounding
            decides it, nor "per_device", of which each device has its own.
        change: How far a "close" leaf moves in the update.
        allowed: How far the step's may be off.
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
    """One update of the reference, in host arrays as one device has them.

    Attributes:
        number: The number of the update, from 0.
        state: Before the update.
        batch: None if there is none.
        key: None if there is none.
        leaves: What the reference returned, the new state and the metrics, by path.
        batch_axis: The axis of the examples in the batch.
    """

    number: int
    state: Any
    batch: Any
    key: Any
    leaves: dict[str, ReferenceLeaf]
    batch_axis: int

    @property
    def examples(self) -> int:
        """The number of examples in the batch, or 0 without a batch."""
        leaves = jax.tree.leaves(self.batch)
        return np.shape(leaves[0])[self.batch_axis] if leaves else 0

    @property
    def arguments(self) -> tuple[Any, ...]:
        """State, batch and key."""
        return self.state, self.batch, self.key

    @property
    def values(self) -> Leaves:
        """The values of all leaves after the update."""
        return {name: leaf.value for name, leaf in self.leaves.items()}

    def select_examples(self, index: np.ndarray) -> Any:
        """Return the batch with these examples."""
        places = (*[slice(None)] * self.batch_axis, index)
        return jax.tree.map(lambda leaf: leaf[places], self.batch)  # keys, too


def make_updates(
    reference: Reference,
    state: Any,
    batches: list[Any],
    keys: list[Any],
    narrowest: np.dtype,
) -> list[ReferenceUpdate]:
    """Make one update on each batch, with the tolerance of every leaf.

    Raises:
        ArgumentsError: If a result is NaN, which nothing equals.
    """
    unit = float(jnp.finfo(narrowest).eps)
    if narrowest.itemsize < 4:
        # A step in mixed precision rounds the numbers to bfloat16 first. An eighth of
        # the unit rounds an eighth of them the other way, which is enough.
        unit /= 8
    updates = []
    for number, (batch, key) in enumerate(zip(batches, keys, strict=True)):
        new = reference.run((state, batch, key))
        nudged_results = []
        for seed in range(RUNS):
            near_state = nudge(state, unit, seed)
            near_batch = nudge(batch, unit, seed + RUNS)
            nudged_results.append(reference((near_state, near_batch, key)))
        old = reference.to_numpy({"state": state, "metrics": {}})
        leaves = {}
        for name, leaf in reference.leaves(new).items():
            nudged = [result[name] for result in nudged_results]
            old_leaf = old.get(name, np.zeros(()))
            leaves[name] = measure_leaf(
                reference, name, old_leaf, leaf, nudged, narrowest
            )
        mark_unstable(list(leaves.values()))
        refuse_nan(leaves, number)
        updates.append(
            ReferenceUpdate(number, state, batch, key, leaves, reference.batch_axis)
        )
        state = new["state"]
    return updates


def refuse_nan(leaves: dict[str, ReferenceLeaf], number: int) -> None:
    """Raise an error if a result is NaN, which nothing equals."""
    names = []
    for name, leaf in leaves.items():
        if leaf.is_compared and np.isnan(leaf.value).any():
            names.append(name)
    if names:
        raise ArgumentsError(
            f"{first_names(names)} is NaN after update {number + 1}, in the "
            "reference too, and nothing equals NaN: give a state and data with which "
            "it is a number"
        )


def measure_leaf(
    reference: Reference,
    name: str,
    old: np.ndarray,
    new: Any,
    nudged: list[np.ndarray],
    narrowest: np.dtype,
) -> ReferenceLeaf:
    """Decide how a leaf is compared, and how far it may be off.

    `nudged` has its value in each of the runs with numbers changed by rounding.
    """
    value = trees.to_numpy(new)
    spread = max(distance(near_value, value) for near_value in nudged)
    if reference.is_per_device(name) and reference.groups == 1:
        kind = "per_device"
    elif value.dtype.kind == "f":
        kind = "close"
    elif spread:
        kind = "unstable"
    else:
        kind = "exact"
    leaf = ReferenceLeaf(name, reference.is_metric(name), old, value, kind)
    if kind == "close" and np.isfinite(value).all():
        narrow = (2, 4 * float(jnp.finfo(narrowest).eps))
        times, fraction = TOLERANCES.get(narrowest.itemsize, narrow)
        unit = float(jnp.finfo(new.dtype).eps)
        change = distance(value, old)
        size = max(distance(value), change)
        leaf.change = change
        rounded = 4 * unit * size
        if unit > 1e-6:
            # It's stored in a narrow type, as momentum in bfloat16, and rounded to
            # that, so its size counts.
            leaf.change = size
            rounded = 2 * unit * size
        leaf.allowed = times * spread + fraction * change + rounded
    return leaf


def mark_unstable(leaves: list[ReferenceLeaf]) -> None:
    """Mark the leaves that rounding decides.

    A leaf that stands still but for rounding is compared, with a wider tolerance.
    """
    state_changes = [leaf.change for leaf in leaves if not leaf.is_metric]
    smallest = STANDS_STILL * max(state_changes, default=0.0)
    for leaf in leaves:
        if leaf.allowed > UNSTABLE * leaf.change > 0:
            leaf.allowed = max(leaf.allowed, smallest)
            if leaf.is_metric or leaf.change >= smallest:
                leaf.kind = "unstable"


def nudge(tree: Any, unit: float, seed: int) -> Any:
    """Change every number by up to `unit` of itself.

    Whole numbers stay: they are counts, weights and labels.
    """
    random = np.random.default_rng(seed)

    def change(leaf: Any) -> Any:
        if not trees.is_float(leaf):
            return leaf
        factor = 1 + unit * random.uniform(-1, 1, np.shape(leaf))
        changed = np.asarray(leaf * factor, leaf.dtype)
        return np.where(leaf == np.round(leaf), leaf, changed)

    return jax.tree.map(change, tree)


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield every operation of a traced program, also of the programs in it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in jaxprs_in_params(equation.params):
            yield from equations(inner)


def narrowest_sum(traced: Any, state: Any) -> np.dtype:
    """Return the narrowest type in which a program adds numbers.

    The type to which it casts a leaf of its new state counts, too.
    """
    dtypes = set()
    for equation in equations(traced.jaxpr.jaxpr):
        if equation.primitive.name in SUMS:
            for variable in (*equation.invars, *equation.outvars):
                dtypes.add(variable.aval.dtype)
    new_leaves = jax.tree.leaves(traced.out_info["state"])
    for old, new in zip(jax.tree.leaves(state), new_leaves, strict=True):
        if not trees.is_key(new) and new.dtype != jnp.result_type(old):
            dtypes.add(new.dtype)
    floats = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.floating)]
    widest_unit = max(
        floats, key=lambda dtype: float(jnp.finfo(dtype).eps), default=np.float64
    )
    return np.dtype(widest_unit)
