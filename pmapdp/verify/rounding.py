"""What rounding may do: the precision of a program, and the spread of its reference under other orders of its batch.

A difference is a mistake if it is larger than the tolerance of its leaf, the sum of

- 20 times the spread: the largest change of the leaf when the reference takes its batch in another order, which changes
  the order of additions as devices do;
- a fraction of the leaf's own change in an update, for formulas that differ by more than the order: 1e-7 in float64
  and 7e-4 in float32;
- a few units in the last place of the values, and of the largest change of any leaf, because a gradient that should
  be zero consists of their rounding.

So float64 sees mistakes of a relative 1e-7, and float32 those above 1 in 1,000.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.verify import trees
from pmapdp.verify.runs import given

ORDERS = 3
MATRIX_PRODUCTS = ("dot_general", "conv_general_dilated")
OF_THE_SPREAD = 20
UNITS = 64


class Expected(NamedTuple):
    """What an update must return, by leaf of the state or of the metrics."""

    values: dict[str, np.ndarray]
    tolerance: dict[str, float]

    def differences(self, held: dict[str, list[np.ndarray]]) -> dict[str, float]:
        """How far each leaf is off, on the device where it is farthest."""
        different = {name: {id(each): each for each in held[name]}.values() for name in self.values}
        return {name: max(trees.distance(x, self.values[name]) for x in each) for name, each in different.items()}

    def wrong(self, held: dict[str, list[np.ndarray]]) -> dict[str, float]:
        """The leaves that are off by more than rounding, and by how much."""
        return {name: size for name, size in self.differences(held).items() if size > self.tolerance[name]}


def epsilon(tree: Any) -> float:
    """The coarsest rounding unit of the floating-point leaves."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if trees.is_float(leaf)]
    return max((float(jax.numpy.finfo(jax.numpy.result_type(leaf)).eps) for leaf in leaves), default=2.0**-52)


def expected(old: Any, new: Any, others: list[Any]) -> Expected:
    """What the step must return, given what its reference returns.

    Args:
        old: tree before the update; None for metrics.
        new: tree after the update.
        others: the same with the batch in other orders; empty where the reference depends on the order.
    """
    before, after, *spreads = map(trees.values, (old, new, *others))
    change = {name: trees.largest(after[name] - before.get(name, 0)) for name in after}
    largest = max((size for size in change.values() if np.isfinite(size)), default=0.0) if before else 0.0
    tolerance = {}
    for name, leaf in trees.named(new).items():
        if trees.is_float(leaf):
            eps = float(jax.numpy.finfo(jax.numpy.result_type(leaf)).eps)
            spread = max((trees.distance(other[name], after[name]) for other in spreads), default=0.0)
            size = max(trees.largest(after[name]), trees.largest(before.get(name, np.zeros(1))))
            rounding = UNITS * eps * (size + largest) if np.isfinite(size) else 0.0
            tolerance[name] = OF_THE_SPREAD * spread + eps**0.45 * change[name] + rounding
        else:
            tolerance[name] = 0.0
    compared = {name: after[name] for name, leaf in trees.named(new).items() if not trees.is_random(leaf)}
    return Expected(compared, tolerance)


def orders(B: int) -> list[np.ndarray]:
    """Orders of a batch of B examples: backwards, and two that mix devices (NumPy, seeds 1 and 2)."""
    return [np.arange(B)[::-1]] + [np.random.default_rng(seed).permutation(B) for seed in range(1, ORDERS)]


def computes_in_float64(reference: Any, state: Any, batch: Any, key: Any) -> str | None:
    """None where the reference keeps float64 throughout, given float64; else why not, in words."""
    arguments = given(state, batch, key)
    try:
        program = jax.make_jaxpr(reference)(*arguments)
    except Exception as error:
        return f"with float64 it raises {type(error).__name__}"
    state, _ = jax.eval_shape(reference, *arguments)
    if any(trees.is_float(leaf) and leaf.dtype != np.float64 for leaf in jax.tree.leaves(state)):
        return "given float64, it returns a state of another type"
    if any(
        equation.primitive.name in MATRIX_PRODUCTS and equation.outvars[0].aval.dtype == np.float32
        for equation in equations(program.jaxpr)
    ):
        return "given float64, it computes matrix products in float32"
    return None


def equations(jaxpr: Any):
    """All equations of a jaxpr, those of the functions that it calls included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)
