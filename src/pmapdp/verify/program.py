"""A traced function as a flat list of operations, which can be run in part or with other rounding.

`trace` makes it, without the calls of functions in it. `evaluate` computes some of its values from others: the
gradient from the batch, or the new state from another gradient. With `Rounding` it rounds differently in every place
where the order of a sum matters, which shows how much of a result is rounding.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
        """For every value the sets, as bits, of the starting values on which it depends."""
        found = dict(starts)
        for each in self.operations:
            bits = 0
            for value in each.inputs:
                bits |= found.get(value, 0)
            for output in each.outputs:
                found[output] = found.get(output, 0) | bits
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
    program: Program, known: dict[int, Any], wanted: Iterable[int], rounding: "Rounding | None" = None
) -> list[Any]:
    """The wanted values of a program, from known ones: only what lies between them is computed."""
    values, wanted = program.constants | known, list(wanted)
    needed = {value for value in wanted if value not in values}
    for each in reversed(program.operations):
        if not needed.isdisjoint(each.outputs):
            needed.update(value for value in each.inputs if value not in values)
    for each in program.operations:
        if not needed.isdisjoint(each.outputs):
            inputs = [values[value] for value in each.inputs]
            found = rounding.apply(each, inputs) if rounding else apply(each, inputs)
            values |= {place: value for place, value in zip(each.outputs, found, strict=True) if place not in known}
    return [values[value] for value in wanted]


def apply(operation: Operation, inputs: Sequence[Any]) -> list[Any]:
    """What one operation returns."""
    primitive = operation.equation.primitive
    with operation.equation.ctx.manager:
        found = primitive.bind(*inputs, **primitive.get_bind_params(operation.equation.params))
    return list(found) if primitive.multiple_results else [found]


class Rounding:
    """Other rounding, by a seed: of the terms of every sum, and of every number in a type narrower than float32."""

    def __init__(self, seed: Any):
        self.seed, self.count = seed, 0

    def change(self, value: Any) -> Any:
        """The value with every number changed by up to a unit in its last place, up or down."""
        if not hasattr(value, "dtype") or not jnp.issubdtype(value.dtype, jnp.inexact):
            return value
        self.count += 1
        # Numbers from -1 to 1 by the place of the element: good enough, and far cheaper than a generator's.
        place = jax.lax.iota(np.uint32, max(value.size, 1)) + self.seed + np.uint32(self.count * 40503 % 2**32)
        place = (place ^ (place >> 16)) * np.uint32(0x45D9F3B)
        place = (place ^ (place >> 16)) * np.uint32(0x45D9F3B)
        random = (place ^ (place >> 16)).astype(np.float32)[: value.size].reshape(value.shape) / 2.0**31 - 1
        if is_narrow(value):  # at least half a unit, so that every number becomes another
            random = jnp.sign(random) * (0.5 + 0.5 * jnp.abs(random))
        factor = 1 + random.astype(jnp.promote_types(value.dtype, np.float32)) * float(jnp.finfo(value.dtype).eps)
        return (value * factor).astype(value.dtype)

    def apply(self, operation: Operation, inputs: list[Any]) -> list[Any]:
        """What one operation returns with other rounding."""
        if operation.name in SUMS:
            inputs = [self.change(value) for value in inputs]
        inside = {"scan": self.scan, "while": self.loop, "cond": self.branch}.get(operation.name)
        found = inside(operation.equation.params, inputs) if inside else apply(operation, inputs)
        narrow = not inside and any(map(is_narrow, found))
        return [self.change(value) if is_narrow(value) else value for value in found] if narrow else found

    def run(self, closed: ClosedJaxpr, inputs: Sequence[Any]) -> list[Any]:
        """A program inside of this one."""
        program = flat(closed)
        return evaluate(program, dict(zip(program.inputs, inputs, strict=True)), program.outputs, self)

    def scan(self, params: dict[str, Any], inputs: list[Any]) -> list[Any]:
        """A loop over arrays."""
        if "ft_in" in params:  # from jax 0.12: the trees of what is fixed, carried and looped over
            fixed, carry, _ = (len(each.vals) for each in params["ft_in"].unpack())
        else:
            fixed, carry = params["num_consts"], params["num_carry"]
        carried = fixed + carry

        def body(carry: list[Any], row: list[Any]) -> tuple[list[Any], list[Any]]:
            found = self.run(params["jaxpr"], [*inputs[:fixed], *carry, *row])
            return found[: carried - fixed], found[carried - fixed :]

        options = {name: params[name] for name in ("length", "reverse", "unroll")}
        last, rows = jax.lax.scan(body, inputs[fixed:carried], inputs[carried:], **options)
        return [*last, *rows]

    def loop(self, params: dict[str, Any], inputs: list[Any]) -> list[Any]:
        """A loop with a condition."""
        of_test, of_body = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        return jax.lax.while_loop(
            lambda carry: self.run(params["cond_jaxpr"], [*inputs[:of_test], *carry])[0],
            lambda carry: self.run(params["body_jaxpr"], [*inputs[of_test:of_body], *carry]),
            inputs[of_body:],
        )

    def branch(self, params: dict[str, Any], inputs: list[Any]) -> list[Any]:
        """A choice between programs."""
        branches = [lambda *given, inner=inner: self.run(inner, given) for inner in params["branches"]]
        return jax.lax.switch(inputs[0], branches, *inputs[1:])


def is_narrow(value: Any) -> bool:
    """Whether a value has a floating-point type narrower than float32."""
    return hasattr(value, "dtype") and jnp.issubdtype(value.dtype, jnp.floating) and value.dtype.itemsize < 4
