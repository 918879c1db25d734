"""Is the work split, is the step compiled once, and does it move arrays in every call? These compare no numbers."""

import re
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from pmapdp.verify import trees
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.report import NotCheckedError
from pmapdp.verify.rounding import Update, program_text
from pmapdp.verify.runs import Ran, step_updates

LOOP = re.compile(r" (scan|while)\[")
ENOUGH = 0.5  # of the work must depend on the number of examples, or how it is split cannot be seen


def compiled_once(ran: Ran, updates: list[Update]) -> Cause | None:
    """Nothing is compiled after the second update (the first may change types, as a Python number becomes an array),
    but for a batch of another size."""
    usual = [number for number, update in enumerate(updates) if update.examples == updates[0].examples]
    if len(usual) < 3:
        raise NotCheckedError("it takes 3 updates, updates=3")
    late = [number for number in usual[2:] if ran.compilations[number]]
    return named("recompilation", update=late[0] + 1) if late else None


def no_transfers(ran: Ran, updates: list[Update]) -> Cause | None:
    """No array moves implicitly to a device or between devices in a call."""
    if compiled_once(ran, updates):
        raise NotCheckedError("compiling moves constants, and the step is compiled in every update")
    placed = trees.named(dict(zip(("state", "batch", "key"), ran.placed, strict=False)))
    if host := [name for name, leaf in placed.items() if isinstance(leaf, np.ndarray)]:
        raise NotCheckedError(f"the layout leaves {host[0]} on the host, whose transfer hides others")
    try:
        with jax.transfer_guard("disallow"):
            jax.block_until_ready(ran.trial.step(*ran.placed))
    except JaxRuntimeError as error:
        found = re.search(r"Disallowed (\S+) transfer: (?:aval=ShapedArray\(|shape=)([^\])]*[\])])", str(error))
        what = f"{found[1]}, {found[2]}" if found else str(error).splitlines()[0]
        if what.endswith(("[]", "()")):
            raise NotCheckedError(f"a number is moved in every call ({what}), and hides what follows") from error
        return named("transfer", what=what)
    return None


def work_is_split(ran: Ran, update: Update) -> Cause | None:
    """A device makes about 1/N of the operations of the reference on the whole batch, by the compiler's count of all
    programs that a call of the step runs: a Python function around a compiled step may run others."""
    trial, N = ran.trial, ran.trial.N
    if N == 1:
        raise NotCheckedError("one device makes all of the work")
    placed, whole = trial.place(update), update.arguments
    if any(LOOP.search(program_text(*each)) for each in ((trial.reference, whole), (trial.step, placed))):
        raise NotCheckedError("the compiler's count of operations does not follow loops")
    programs = ran.programs
    if not programs:  # they were compiled before
        jax.clear_caches()
        programs = step_updates(trial, [update]).programs
    if not programs:
        raise NotCheckedError("the programs of the step are not in memory after a call")
    reference = lower(trial.reference, whole)
    part = lower(trial.reference, (whole[0], trees.parts(whole[1], N)[0], *whole[2:]))
    share = operations(part) / (operations(reference) or 1)
    if not 0 < share <= 1 - ENOUGH * (1 - 1 / N):
        raise NotCheckedError("too little of the work depends on the number of examples")
    mine = sum(operations(program) * len(program.local_devices()) for program in programs) / N
    mine /= operations(reference.compile()) or 1
    if mine < (1 + share) / 2:
        return None
    leaf, array = next(iter(trees.named(placed[1]).items()))
    how = f"is {array.sharding}" if isinstance(array, jax.Array) else "is a host array"
    return named("every device computes everything", ratio=mine, part=share, placed=f"{leaf} {how}")


def lower(function: Any, arguments: Sequence[Any]) -> Any:
    """The program of a function, not compiled yet."""
    return (function if hasattr(function, "lower") else jax.jit(function)).lower(*arguments)


def operations(program: Any) -> float:
    """Floating-point operations of a lowered program, or on one device of a compiled one, by the compiler's count."""
    return float((program.cost_analysis() or {}).get("flops", 0))
