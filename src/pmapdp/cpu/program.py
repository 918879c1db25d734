"""A pass over a program as JAX traced it (jaxpr): equations for which there is a rule are computed in another way.

Calls of `jax.jit` and `jax.shard_map` are looked into. Everything else stays as it is, with all that is inside of it:
custom derivatives, `scan`, `cond`, `remat`.
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
    """`function` with the equations of the primitives that `rules` names computed by them."""

    @functools.wraps(function, updated=())  # not its attributes: what `pmap` returns has its own `lower`
    def run(*arguments: Any) -> Any:
        program, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        outputs = Evaluation(program, rules).outputs(jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), outputs)

    return run


class Evaluation:
    """One evaluation of a program, equation by equation; `makers` has the equation that made a variable."""

    def __init__(self, program: core.ClosedJaxpr, rules: Mapping[str, Rule]):
        self.jaxpr, self.rules = program.jaxpr, rules
        self.values: dict[Any, Any] = dict(zip(self.jaxpr.constvars, program.consts, strict=True))
        self.makers: dict[Any, Equation] = {}
        self.computed: set[int] = set()

    def outputs(self, arguments: Sequence[Any]) -> list[Any]:
        """The program's outputs for these arguments."""
        self.values |= zip(self.jaxpr.invars, arguments, strict=True)
        for equation in self.jaxpr.eqns:
            if id(equation) not in self.computed:  # a rule may compute several equations at once
                self.write(equation, self.compute(equation, [self.read(variable) for variable in equation.invars]))
        return [self.read(variable) for variable in self.jaxpr.outvars]

    def due(self, primitive: core.Primitive) -> list[Equation]:
        """The equations of a primitive that could be computed next, because their inputs are known."""
        return [
            each
            for each in self.jaxpr.eqns
            if each.primitive is primitive
            and id(each) not in self.computed
            and all(isinstance(x, core.Literal) or x in self.values for x in each.invars)
        ]

    def read(self, variable: Any) -> Any:
        """The value of a variable or a literal."""
        return variable.val if isinstance(variable, core.Literal) else self.values[variable]

    def write(self, equation: Equation, outputs: Sequence[Any]) -> None:
        """Take the outputs of an equation."""
        self.computed.add(id(equation))
        self.values |= zip(equation.outvars, outputs, strict=True)
        self.makers |= dict.fromkeys(equation.outvars, equation)

    def compute(self, equation: Equation, inputs: Sequence[Any]) -> Sequence[Any]:
        """By a rule, from the equations inside of it, or as JAX does."""
        name, params = equation.primitive.name, equation.params
        outputs = self.rules[name](self, equation, inputs) if name in self.rules else None
        if outputs is not None:
            return outputs
        if name in ("jit", "pjit") and not any(isinstance(s, NamedSharding) for s in params["in_shardings"]):
            return Evaluation(params["jaxpr"], self.rules).outputs(inputs)
        if name == "shard_map" and not params["check_vma"]:
            inside = core.ClosedJaxpr(params["jaxpr"], ())
            specs = {"in_specs": params["in_specs"], "out_specs": list(params["out_specs"]), "check_vma": False}
            options = specs | {"mesh": params["mesh"], "axis_names": params["newly_manual_axes"]}
            return jax.shard_map(lambda *arrays: Evaluation(inside, self.rules).outputs(arrays), **options)(*inputs)
        wanted = equation.primitive.get_bind_params(params)
        functions, params = wanted if isinstance(wanted, tuple) else ((), wanted)
        found = equation.primitive.bind(*functions, *inputs, **params)
        return found if equation.primitive.multiple_results else [found]
