"""Where the gradient is in the reference's program: the values through which the batch reaches the new state.

Behind them the program works element by element on arrays of the shapes of the state: that is the optimizer. Several
such cuts follow one another where a number of the whole gradient or batch enters, as its norm in clipping or the count
of valid examples. `verify` puts another gradient there, to see what the reference returns for it under any optimizer.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from pmapdp.verify.program import Operation, Program, evaluate
from pmapdp.verify.reference_program import Reference
from pmapdp.verify.rounding import Update

ELEMENTWISE = {
    "abs", "acos", "add", "add_any", "and", "asin", "atan", "cbrt", "ceil", "clamp", "convert_element_type", "copy",
    "cos", "div", "eq", "erf", "exp", "exp2", "expm1", "floor", "ge", "gt", "integer_pow", "is_finite", "le", "log",
    "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "reduce_precision", "rem",
    "round", "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
    "optimization_barrier", "cond", "broadcast_in_dim", "squeeze", "reshape", "expand_dims", "copy_p",
}  # fmt: skip
TO_A_NUMBER = {"reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or"}
MOST_CUTS = 8


class Cut(NamedTuple):
    """Values through which alone the batch reaches the new state."""

    values: tuple[int, ...]
    arrays: tuple[bool, ...]  # which of them have the shape of a leaf of the state; the others are numbers
    by_norm: bool  # whether a number that enters behind it comes from the gradient, as a norm does


def shape_of(program: Program, value: int) -> tuple[int, ...]:
    """The shape without axes of size 1."""
    return tuple(size for size in getattr(program.types[value], "shape", ()) if size != 1)


def is_fraction(program: Program, value: int) -> bool:
    """Whether a value holds floating-point numbers."""
    return jax.numpy.issubdtype(program.types[value].dtype, np.floating)


class Cuts:
    """The cuts of a program of the reference, the last one first."""

    def __init__(self, program: Program, inputs_of_batch: list[int], outputs: list[int], shapes: set[tuple[int, ...]]):
        self.program, self.shapes, self.producers = program, shapes, program.producers
        self.of_batch = program.reaching(dict.fromkeys(inputs_of_batch, 1))
        self.found: list[Cut] = []
        values = self.back([v for v in outputs if self.of_batch.get(v) and is_fraction(program, v)])
        while values and len(self.found) < MOST_CUTS:
            values = self.needed(values)
            cut = Cut(tuple(values), tuple(bool(shape_of(program, v)) for v in values), False)
            if self.found and cut.values == self.found[-1].values:
                break
            if any(value in inputs_of_batch for value in values):
                break
            if self.found:
                previous = self.found[-1]
                self.found[-1] = previous._replace(by_norm=self.norm_between(previous.values, values))
            self.found.append(cut)
            values = self.back([each for value in values for each in self.across(value)])

    def behind(self, value: int) -> tuple[Operation, list[int]] | None:
        """The operation behind a value that works element by element, with those arguments that the batch reaches."""
        operation = self.producers.get(value)
        if (
            operation is not None and operation.name == "slice"
        ):  # of equal copies, one for each group: from their source
            copies = self.producers.get(operation.inputs[0])
            if copies is not None and copies.name == "broadcast_in_dim":
                operation = copies
        if operation is None or operation.name not in ELEMENTWISE | TO_A_NUMBER:
            return None
        inputs = [each for each in operation.inputs if self.of_batch.get(each)]
        to, sizes = shape_of(self.program, value), {shape_of(self.program, each) for each in inputs}
        if operation.name in TO_A_NUMBER:
            return (operation, inputs) if to == () and sizes <= self.shapes | {()} else None
        same = sizes <= {to, ()} or operation.name == "cond"
        return (operation, inputs) if same and sizes <= self.shapes | {()} else None

    def back(self, values: list[int]) -> list[int]:
        """From values back to where a number of the whole batch enters, or the work element by element begins."""
        found: dict[int, None] = {}
        seen: set[int] = set()
        waiting = list(reversed(values))
        while waiting:
            value = waiting.pop()
            if value in seen:
                continue
            seen.add(value)
            step = self.behind(value)
            mixed = (
                shape_of(self.program, value) and any(not shape_of(self.program, each) for each in step[1])
                if step
                else 0
            )
            if step is None or mixed or step[0].name in TO_A_NUMBER:
                found[value] = None
            else:
                waiting.extend(reversed(step[1]))
        return list(found)

    def across(self, value: int) -> list[int]:
        """The arguments of the operation behind a value; of a number those arrays from which it is computed."""
        step = self.behind(value)
        return [value] if step is None else step[1]

    def needed(self, values: list[int]) -> list[int]:
        """Those values that cannot be computed from the others."""
        kept = list(values)
        for value in sorted(values, key=lambda v: bool(shape_of(self.program, v))):
            if self.computed(value, set(kept) - {value}):
                kept.remove(value)
        return kept

    def computed(self, value: int, others: set[int]) -> bool:
        """Whether the batch reaches a value only through others, element by element."""
        waiting, seen = [value], set(others)
        while waiting:
            step = self.behind(waiting.pop())
            if step is None:
                return False
            waiting.extend(each for each in step[1] if each not in seen)
            seen.update(step[1])
        return True

    def norm_between(self, later: tuple[int, ...], earlier: list[int]) -> bool:
        """Whether a number between two cuts is computed from arrays of the earlier one."""
        arrays = {value: 1 for value in earlier if shape_of(self.program, value)}
        reached = self.program.reaching(arrays)
        between = {each for value in later for each in self.across(value)}
        return any(
            reached.get(each) and shape_of(self.program, each) == () and is_fraction(self.program, each)
            for each in between
        )


class Gradient:
    """The reference of an update, opened at its cuts: what it computes there, and what it makes of other values."""

    def __init__(self, reference: Reference, update: Update):
        self.reference, self.update = reference, update
        self.runs: dict[tuple, Any] = {}
        self.program, self.returned = reference.program(update.arguments)
        self.cuts = self.find(update)

    def find(self, update: Update) -> list[Cut]:
        """The cuts for a batch of the size of this update's."""
        program, returned = self.reference.program(update.arguments)
        numbers = jax.tree.unflatten(jax.tree.structure(update.arguments), program.inputs)
        outputs = jax.tree.unflatten(jax.tree.structure(returned), program.outputs)
        shapes = {tuple(size for size in np.shape(leaf) if size != 1) for leaf in jax.tree.leaves(update.state)}
        self.inputs_of_batch = jax.tree.leaves(numbers[1])
        return Cuts(program, self.inputs_of_batch, jax.tree.leaves(outputs["state"]), shapes).found

    def at(self, batch: Any) -> list[list[np.ndarray]]:
        """The values at each cut for another batch, which may have another number of examples."""
        update = self.update._replace(batch=batch)
        program, _ = self.reference.program(update.arguments)
        cuts = self.find(update)
        if [cut.arrays for cut in cuts] != [cut.arrays for cut in self.cuts]:
            raise ValueError("the program differs with the number of examples")
        wanted = [value for cut in cuts for value in cut.values]
        flat = iter(
            self.run(program, dict(zip(program.inputs, jax.tree.leaves(update.arguments), strict=True)), wanted)
        )
        return [[np.asarray(next(flat)) for _ in cut.values] for cut in cuts]

    def state(self, cut: Cut, values: list[np.ndarray]) -> Any:
        """The new state where the cut has these values."""
        known = dict(zip(self.program.inputs, jax.tree.leaves(self.update.arguments), strict=True))
        types = [self.program.types[value].dtype for value in cut.values]
        known |= {place: np.asarray(value).astype(t) for place, value, t in zip(cut.values, values, types, strict=True)}
        flat = self.run(self.program, known, self.outputs)
        return jax.tree.unflatten(jax.tree.structure(self.returned["state"]), flat)

    def run(self, program: Program, known: dict[int, Any], wanted: list[int]) -> list[Any]:
        """Evaluate as one compiled program."""
        places, what = tuple(known), (id(program), tuple(known), tuple(wanted))
        if what not in self.runs:
            self.runs[what] = jax.jit(lambda values: evaluate(program, dict(zip(places, values, strict=True)), wanted))
        return self.runs[what](list(known.values()))

    @property
    def outputs(self) -> list[int]:
        """The values of the new state, in the order of its leaves."""
        return jax.tree.leaves(jax.tree.unflatten(jax.tree.structure(self.returned), self.program.outputs)["state"])

    def behind(self, cut: Cut, names: list[str]) -> dict[str, set[int]]:
        """For each leaf of the new state (by name, in the order of its leaves), from which values of a cut it is
        computed: their places."""
        reached = self.program.reaching({value: 1 << place for place, value in enumerate(cut.values)})
        bits = {name: reached.get(output, 0) for name, output in zip(names, self.outputs, strict=True)}
        return {name: {place for place in range(len(cut.values)) if found >> place & 1} for name, found in bits.items()}

    def trained(self, names: list[str]) -> set[str]:
        """Those leaves of the state (by name, in the order of its leaves) on whose old value a gradient depends, in
        this update or by way of other leaves in a later one. Statistics and averages of parameters are none."""
        inputs, outputs = self.program.inputs[: len(names)], self.outputs
        reached = self.program.reaching({value: 1 << place for place, value in enumerate(inputs)})
        bits = 0
        for value in self.cuts[-1].values if self.cuts else ():
            bits |= reached.get(value, 0)
        while True:
            more = bits
            for place, output in enumerate(outputs):
                if bits >> place & 1:
                    more |= reached.get(output, 0)
            if more == bits:
                return {name for place, name in enumerate(names) if bits >> place & 1}
            bits = more
