"""Evaluates a program as JAX traced it (a jaxpr), and computes some of its equations in another way.

Calls of `jax.jit` are looked into. Everything else stays as it is, with all that is inside of it: custom derivatives,
`scan`, `cond`, `remat`, `shard_map`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.sharding import NamedSharding

Equation = Any  # core.JaxprEqn, whose variables JAX declares without shapes
# From an evaluation, an equation of it and the values of its inputs to its outputs; None leaves the equation as it is.
Rule = Callable[["Evaluation", Equation, Sequence[Any]], Sequence[Any] | None]


def rewritten(function: Callable[..., Any], rules: Mapping[str, Rule]) -> Callable[..., Any]:
    """`function`, in which the rule with a primitive's name computes the equations of that primitive."""

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        outputs = Evaluation(program, rules).outputs(jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return run


class Evaluation:
    """One evaluation of a program, equation by equation.

    Attributes:
        makers: for each variable the equation that made it.
    """

    def __init__(self, program: core.ClosedJaxpr, rules: Mapping[str, Rule]):
        self.jaxpr, self.rules = program.jaxpr, rules
        self.values: dict[Any, Any] = dict(zip(self.jaxpr.constvars, program.consts, strict=True))
        self.makers: dict[Any, Equation] = {}

    def outputs(self, arguments: Sequence[Any]) -> list[Any]:
        """The program's outputs for these arguments."""
        self.values |= zip(self.jaxpr.invars, arguments, strict=True)
        for equation in self.jaxpr.eqns:
            outputs = self.compute(equation, [self.read(variable) for variable in equation.invars])
            self.values |= zip(equation.outvars, outputs, strict=True)
            self.makers |= dict.fromkeys(equation.outvars, equation)
        return [self.read(variable) for variable in self.jaxpr.outvars]

    def read(self, variable: Any) -> Any:
        """The value of a variable or a literal."""
        return variable.val if isinstance(variable, core.Literal) else self.values[variable]

    def compute(self, equation: Equation, inputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs of an equation: by a rule, from the equations of a `jax.jit`, or as JAX computes it."""
        name, params = equation.primitive.name, equation.params
        outputs = self.rules[name](self, equation, inputs) if name in self.rules else None
        if outputs is not None:
            return outputs
        if name in ("jit", "pjit") and not any(isinstance(s, NamedSharding) for s in params["in_shardings"]):
            return Evaluation(params["jaxpr"], self.rules).outputs(inputs)
        wanted = equation.primitive.get_bind_params(params)
        functions, params = wanted if isinstance(wanted, tuple) else ((), wanted)
        found = equation.primitive.bind(*functions, *inputs, **params)
        return found if equation.primitive.multiple_results else [found]
