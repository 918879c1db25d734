"""A traced function as a flat list of operations, which can be run in part or with other rounding.

`trace` makes it, without the calls of functions in it. `evaluate` computes some of its values from others: the
gradient from the batch, or the new state from another gradient; on request with other operations, as those of
`other_rounding`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

# Operations that stand for the program inside of them, and what they call it.
CALLS = {
    "jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "checkpoint": "jaxpr",
    "remat2": "jaxpr", "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
}  # fmt: skip
# Operations that add numbers, in an order which devices and compilers change.
SUMS = {
    "dot_general", "ragged_dot", "conv_general_dilated", "reduce_sum", "cumsum", "psum", "reduce_window_sum",
    "scatter-add", "scatter_add",
}  # fmt: skip


class Operation(NamedTuple):
    """One operation; its arguments and results are numbers of values."""

    name: str
    equation: Any  # as JAX has it
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Program(NamedTuple):
    """Operations in the order in which they are computed."""

    operations: list[Operation]
    inputs: list[int]
    outputs: list[int]
    constants: dict[int, Any]
    types: list[Any]  # of each value: shape and dtype

    @property
    def producers(self) -> dict[int, Operation]:
        """The operation that computes each value."""
        return {output: each for each in self.operations for output in each.outputs}

    def reaching(self, starts: dict[int, int]) -> dict[int, int]:
        """For every value the sets, as bits, of the starting values on which it depends, these on themselves alone."""
        found = dict(starts)
        for each in self.operations:
            bits = 0
            for value in each.inputs:
                bits |= found.get(value, 0)
            for output in each.outputs:
                found.setdefault(output, bits)
        return found


def trace(function: Callable, *arguments: Any) -> tuple[Program, Any]:
    """The program of a function for arguments like these, and the form of what it returns."""
    closed, returned = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return flat(closed), returned


def program_text(function: Callable, arguments: Sequence[Any]) -> str:
    """The program of a function, as JAX prints it; its arguments may also be needed outside of JAX."""
    return str(jax.make_jaxpr(lambda: function(*arguments))())


def flat(closed: ClosedJaxpr) -> Program:
    """A program of JAX without the calls in it."""
    program = Program([], [], [], {}, [])

    def new(variable: Any) -> int:
        program.types.append(variable.aval)
        return len(program.types) - 1

    def add(jaxpr: Jaxpr, known: dict[Any, int]) -> list[int]:
        def number(atom: Any) -> int:
            if not isinstance(atom, Literal):
                return known[atom]
            program.constants[place := new(atom)] = atom.val
            return place

        for equation in jaxpr.eqns:
            name, inputs = equation.primitive.name, tuple(map(number, equation.invars))
            inner = equation.params.get(CALLS.get(name, ""))
            if inner is None:
                outputs = tuple(map(new, equation.outvars))
                program.operations.append(Operation(name, equation, inputs, outputs))
            else:
                outputs = tuple(enter(inner, inputs))
            known.update(zip(equation.outvars, outputs, strict=True))
        return list(map(number, jaxpr.outvars))

    def enter(inner: Any, inputs: Sequence[int]) -> list[int]:
        jaxpr, constants = (inner.jaxpr, inner.consts) if isinstance(inner, ClosedJaxpr) else (inner, [])
        known: dict[Any, int] = {}
        for variable, value in zip(jaxpr.constvars, constants, strict=True):
            program.constants[known.setdefault(variable, new(variable))] = value
        return add(jaxpr, known | dict(zip(jaxpr.invars, inputs, strict=True)))

    program.inputs.extend(map(new, closed.jaxpr.invars))
    program.outputs.extend(enter(closed, program.inputs))
    return program


def evaluate(
    program: Program, known: dict[int, Any], wanted: Iterable[int], how: Callable[..., list[Any]] | None = None
) -> list[Any]:
    """The wanted values of a program, from known ones: only what lies between them is computed, each operation by
    `how(operation, inputs)` where that is given."""
    values, wanted = program.constants | known, list(wanted)
    needed = {value for value in wanted if value not in values}
    for each in reversed(program.operations):
        if not needed.isdisjoint(each.outputs):
            needed.update(value for value in each.inputs if value not in values)
    for each in program.operations:
        if not needed.isdisjoint(each.outputs):
            inputs = [values[value] for value in each.inputs]
            found = (how or apply)(each, inputs)
            values |= {place: value for place, value in zip(each.outputs, found, strict=True) if place not in known}
    return [values[value] for value in wanted]


def apply(operation: Operation, inputs: Sequence[Any]) -> list[Any]:
    """What one operation returns."""
    primitive = operation.equation.primitive
    with operation.equation.ctx.manager:
        found = primitive.bind(*inputs, **primitive.get_bind_params(operation.equation.params))
    return list(found) if primitive.multiple_results else [found]
