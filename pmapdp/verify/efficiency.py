"""Is the work split, is the step compiled once, and does it move arrays in every call? These compare no numbers."""

import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.errors import JaxRuntimeError

from pmapdp.verify import trees
from pmapdp.verify.mistakes import named
from pmapdp.verify.report import FAILED, NOT_CHECKED, PASSED, Check
from pmapdp.verify.rounding import Update, program_text
from pmapdp.verify.runs import Ran

LOOP = re.compile(r" (scan|while)\[")
ENOUGH = 0.5  # of the work must depend on the number of examples, or how it is split cannot be seen


def compiled_once(rans: dict[int, Ran]) -> Check:
    """Nothing is compiled after the second update (the first may change types, as a Python number becomes an array)."""
    name, devices = "compiled once", tuple(rans)
    late = {N: [n for n, count in enumerate(ran.compilations, 1) if count and n > 2] for N, ran in rans.items()}
    wrong = {N: updates[0] for N, updates in late.items() if updates}
    if wrong:
        cause, text = named("recompilation", update=min(wrong.values()))
        return Check(name, FAILED, tuple(wrong), text, cause)
    if any(len(ran.compilations) < 3 for ran in rans.values()):
        return Check(name, NOT_CHECKED, devices, "it takes 3 updates, updates=3")
    return Check(name, PASSED, devices)


def no_transfers(ran: Ran) -> Check:
    """No array moves implicitly to a device or between devices in a call; scalars are let pass."""
    name, devices = "no implicit transfers", (ran.trial.N,)
    if any(ran.compilations[2:]) or len(ran.compilations) < 3:
        why = "compiling moves constants, and the step may be compiled in every update"
        return Check(name, NOT_CHECKED, devices, why)
    try:
        with jax.transfer_guard("disallow"):
            jax.block_until_ready(ran.trial.step(*ran.placed))
    except JaxRuntimeError as error:
        found = re.search(r"Disallowed (\S+) transfer: (?:aval|shape)=(?:ShapedArray\()?([^\]]*\])", str(error))
        what = f"{found[1]}, {found[2]}" if found else str(error).splitlines()[0]
        if what.endswith("[]"):
            why = f"only a number is moved in every call ({what}); what follows it is not seen"
            return Check(name, PASSED, devices, why)
        cause, text = named("transfer", what=what)
        return Check(name, FAILED, devices, text, cause)
    except Exception as error:
        return Check(name, NOT_CHECKED, devices, f"another update raised {type(error).__name__}")
    return Check(name, PASSED, devices)


def work_is_split(ran: Ran, update: Update) -> Check:
    """A device makes about 1/N of the operations, by the compiler's count, of the reference on the whole batch."""
    name, trial, devices = "the work is split", ran.trial, (ran.trial.N,)
    if trial.N == 1:
        return Check(name, NOT_CHECKED, devices, "one device makes all of the work")
    try:
        placed, whole = trial.place(update), update.arguments
        part = (whole[0], trees.parts(whole[1], trial.N)[0], *whole[2:])
        if any(LOOP.search(program_text(*each)) for each in ((trial.reference, whole), (trial.step, placed))):
            return Check(name, NOT_CHECKED, devices, "the compiler's count of operations does not follow loops")
        reference = lower(trial.reference, whole)
        share = operations(lower(trial.reference, part)) / (operations(reference) or 1)
        mine = operations(lower(trial.step, placed).compile()) / (operations(reference.compile()) or 1)
    except Exception as error:  # whatever a step does that cannot be traced: it may be right all the same
        why = f"the step cannot be compiled apart ({type(error).__name__})"
        return Check(name, NOT_CHECKED, devices, why)
    if not 0 < share <= 1 - ENOUGH * (1 - 1 / trial.N):
        return Check(name, NOT_CHECKED, devices, "too little of the work depends on the number of examples")
    if mine < (1 + share) / 2:
        return Check(name, PASSED, devices)
    leaf, array = next(iter(trees.named(placed[1]).items()))
    how = f"lies as {array.sharding}" if isinstance(array, jax.Array) else "is a host array"
    cause, text = named("every device computes everything", ratio=mine, part=share, placed=f"{leaf} {how}")
    return Check(name, FAILED, devices, text, cause)


def lower(function: Any, arguments: Sequence[Any]) -> Any:
    """The program of a function, not compiled yet."""
    return (function if hasattr(function, "lower") else jax.jit(function)).lower(*arguments)


def operations(program: Any) -> float:
    """Floating-point operations of a lowered program, or on one device of a compiled one, by the compiler's count."""
    return float((program.cost_analysis() or {}).get("flops", 0))
