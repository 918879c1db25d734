"""Other rounding: of the terms of every sum, and of every number in a type narrower than float32.

Devices and compilers change the order of sums. A program that is evaluated so (`program.evaluate`) shows how much of
its result is rounding.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr

from pmapdp.verify.program import SUMS, Operation, apply, evaluate, flat


class Rounding:
    """Operations with other rounding, by a seed."""

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
        return evaluate(program, dict(zip(program.inputs, inputs, strict=True)), program.outputs, self.apply)

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
