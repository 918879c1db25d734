"""Is the work split, is the step compiled once, and does it move arrays in every call? These compare no numbers."""

import re
from collections.abc import Callable
from typing import Any

import jax
from jax.errors import JaxRuntimeError

from pmapdp.verify import trees
from pmapdp.verify.history import Ran, Wanted
from pmapdp.verify.report import FAILED, NOT_CHECKED, PASSED, Check
from pmapdp.verify.rounding import equations
from pmapdp.verify.runs import call, given
from pmapdp.verify.sentences import sentence

LOOPS = ("scan", "while")
ENOUGH = 0.5  # of the work must depend on the number of examples, or how it is split cannot be seen


def compiled_once(ran: Ran) -> Check:
    """Nothing is compiled after the second update (the first may change types, as a Python number becomes an array)."""
    name, devices = "compiled once", (ran.trial.N,)
    late = [number for number, count in enumerate(ran.compilations, 1) if count and number > 2]
    if len(ran.compilations) < 3:
        return Check(name, NOT_CHECKED, devices, "it takes 3 updates, updates=3")
    if not late:
        return Check(name, PASSED, devices)
    why = (
        f"The state changes its type in every update ({ran.changed_types[0]}): return it as it came."
        if ran.changed_types
        else "A function is made anew in every call (jax.jit, jax.pmap or a lambda inside the step), or a static "
        "argument changes: build the compiled function once, and pass numbers that change as arrays."
    )
    return Check(name, FAILED, devices, sentence("recompilation", update=late[0], why=why), "recompilation")


def no_transfers(ran: Ran) -> Check:
    """No array moves implicitly to a device or between devices in a call; scalars are let pass."""
    name, devices = "no implicit transfers", (ran.trial.N,)
    if any(ran.compilations[2:]) or len(ran.compilations) < 3:
        return Check(
            name, NOT_CHECKED, devices, "compiling moves constants, and the step may be compiled in every update"
        )
    try:
        with jax.transfer_guard("disallow"):
            jax.block_until_ready(call(ran.trial.step, *ran.placed))
    except JaxRuntimeError as error:
        found = re.search(r"Disallowed (\S+) transfer: (?:aval|shape)=(?:ShapedArray\()?([^\]]*\])", str(error))
        what = f"{found[1]}, {found[2]}" if found else str(error).splitlines()[0]
        if found and found[2].endswith("[]"):
            return Check(
                name, PASSED, devices, f"only a number is moved in every call ({what}); what follows it is not seen"
            )
        return Check(name, FAILED, devices, sentence("transfer", what=what), "transfer")
    except Exception as error:
        return Check(name, NOT_CHECKED, devices, f"another update raised {type(error).__name__}")
    return Check(name, PASSED, devices)


def work_is_split(ran: Ran, wanted: Wanted) -> Check:
    """A device makes about 1/N of the operations, by the compiler's count, of the reference on the whole batch."""
    name, trial, update = "the work is split", ran.trial, wanted.updates[0]
    devices = (trial.N,)
    if trial.N == 1:
        return Check(name, NOT_CHECKED, devices, "one device makes all of the work")
    try:
        placed = given(*trial.place(update.state, update.batch, update.key))
        whole, part = (
            given(update.state, x, update.key) for x in (update.batch, trees.parts(update.batch, trial.N)[0])
        )
        if has_loops(trial.reference, whole) or has_loops(trial.step, placed):
            return Check(name, NOT_CHECKED, devices, "the compiler's count of operations does not follow loops")
        reference = lower(trial.reference, whole)
        share = operations(lower(trial.reference, part)) / (operations(reference) or 1)
        mine = operations(lower(trial.step, placed).compile()) / (operations(reference.compile()) or 1)
    except Exception as error:  # whatever a step does that cannot be traced: it may be right all the same
        return Check(name, NOT_CHECKED, devices, f"the step cannot be compiled apart ({type(error).__name__})")
    if not 0 < share <= 1 - ENOUGH * (1 - 1 / trial.N):
        return Check(name, NOT_CHECKED, devices, "too little of the work depends on the number of examples")
    if mine < (1 + share) / 2:
        return Check(name, PASSED, devices)
    leaf, where = next(iter(trees.named(placed[1]).items()))
    how = (
        f"{leaf} lies as {where.sharding.spec if hasattr(where.sharding, 'spec') else where.sharding}"
        if isinstance(where, jax.Array)
        else f"{leaf} is a host array"
    )
    text = sentence("every device computes everything", ratio=mine, part=share, placed=how)
    return Check(name, FAILED, devices, text, "every device computes everything")


def has_loops(function: Callable, arguments: list[Any]) -> bool:
    """Whether a loop is among the operations of a program."""
    return any(each.primitive.name in LOOPS for each in equations(jax.make_jaxpr(function)(*arguments).jaxpr))


def lower(function: Any, arguments: list[Any]) -> Any:
    """The program of a function, not compiled yet."""
    return (function if hasattr(function, "lower") else jax.jit(function)).lower(*arguments)


def operations(program: Any) -> float:
    """Floating-point operations of a lowered program, or on one device of a compiled one, by the compiler's count."""
    return float((program.cost_analysis() or {}).get("flops", 0))
