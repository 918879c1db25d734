"""The reference as a function of (state, batch, key), compiled and traced once for arguments of the same shapes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params

from pmapdp.verify import trees
from pmapdp.verify.other_rounding import Rounding
from pmapdp.verify.program import SUMS, Program, evaluate, trace
from pmapdp.verify.trees import Leaves

FLOATS = (jnp.float64, jnp.float32, jnp.float16, jnp.bfloat16, jnp.float8_e4m3fn, jnp.float8_e5m2)


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
            return evaluate(program, known, program.outputs, Rounding(seed).apply)

        jitted = self.once("rounded", arguments, lambda: jax.jit(run))
        found = jitted(np.uint32(seed * 977 + 1), *jax.tree.leaves(trees.to_host(arguments)))
        return trees.to_host(jax.tree.unflatten(jax.tree.structure(returned), found))


def leaves_of(returned: dict[str, Any]) -> dict[str, Leaves]:
    """The leaves of the "state", with a new key that was returned, and of the "metrics"."""
    state = {name: trees.numbers(leaf) for name, leaf in trees.with_key(returned).items()}
    return {"state": state, "metrics": trees.values(returned["metrics"])}


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
