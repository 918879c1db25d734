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

# From an evaluation, an equation of it and the values of its inputs to its outputs; None leaves the equation as it is.
Rule = Callable[["Evaluation", core.JaxprEqn, Sequence[Any]], Sequence[Any] | None]


def rewritten(function: Callable[..., Any], rules: Mapping[str, Rule]) -> Callable[..., Any]:
    """`function` with the equations of the primitives that `rules` names computed by them."""

    @functools.wraps(function, updated=())  # not its attributes: what `pmap` returns has its own `lower`
    def run(*arguments: Any) -> Any:
        flat, structure = jax.tree.flatten(arguments)

        def of_arrays(*flat: Any) -> Any:
            return function(*jax.tree.unflatten(structure, flat))

        program, shapes = jax.make_jaxpr(of_arrays, return_shape=True)(*flat)
        return jax.tree.unflatten(jax.tree.structure(shapes), Evaluation(program, rules).outputs(flat))

    return run


class Evaluation:
    """One evaluation of a program, equation by equation.

    Attributes:
        equations: those of the program, in order.
        makers: the equation that made a variable, for those computed so far.
    """

    def __init__(self, program: core.ClosedJaxpr, rules: Mapping[str, Rule]):
        self.jaxpr, self.rules, self.equations = program.jaxpr, rules, program.jaxpr.eqns
        self.values: dict[Any, Any] = dict(zip(self.jaxpr.constvars, program.consts, strict=True))
        self.makers: dict[Any, core.JaxprEqn] = {}
        self.computed: set[int] = set()

    def outputs(self, arguments: Sequence[Any]) -> list[Any]:
        """The program's outputs for these arguments."""
        self.values |= zip(self.jaxpr.invars, arguments, strict=True)
        for equation in self.equations:
            if id(equation) not in self.computed:  # a rule may compute several equations at once
                self.write(equation, self.compute(equation, [self.read(variable) for variable in equation.invars]))
        return [self.read(variable) for variable in self.jaxpr.outvars]

    def due(self) -> list[core.JaxprEqn]:
        """The equations that could be computed next, because their inputs are known."""
        return [
            equation
            for equation in self.equations
            if id(equation) not in self.computed
            and all(isinstance(each, core.Literal) or each in self.values for each in equation.invars)
        ]

    def read(self, variable: Any) -> Any:
        """The value of a variable or a literal."""
        return variable.val if isinstance(variable, core.Literal) else self.values[variable]

    def write(self, equation: core.JaxprEqn, outputs: Sequence[Any]) -> None:
        """Take the outputs of an equation."""
        self.computed.add(id(equation))
        self.values |= zip(equation.outvars, outputs, strict=True)
        self.makers |= dict.fromkeys(equation.outvars, equation)

    def compute(self, equation: core.JaxprEqn, inputs: Sequence[Any]) -> Sequence[Any]:
        """By a rule, from the equations inside of it, or as JAX does."""
        name, params = equation.primitive.name, equation.params
        outputs = self.rules[name](self, equation, inputs) if name in self.rules else None
        if outputs is not None:
            return outputs
        if name in ("jit", "pjit") and not any(isinstance(s, NamedSharding) for s in params["in_shardings"]):
            return Evaluation(params["jaxpr"], self.rules).outputs(inputs)
        if name == "shard_map" and not params["check_vma"]:
            inside = core.ClosedJaxpr(params["jaxpr"], ())
            return jax.shard_map(
                lambda *arrays: Evaluation(inside, self.rules).outputs(arrays),
                mesh=params["mesh"],
                in_specs=params["in_specs"],
                out_specs=list(params["out_specs"]),
                axis_names=params["newly_manual_axes"],
                check_vma=False,
            )(*inputs)
        wanted = equation.primitive.get_bind_params(params)
        functions, params = wanted if isinstance(wanted, tuple) else ((), wanted)
        found = equation.primitive.bind(*functions, *inputs, **params)
        return found if equation.primitive.multiple_results else [found]


def shape_of(variable: Any) -> Any:
    """Shape and type of a variable, as `jax.ShapeDtypeStruct` has them."""
    return variable.aval
