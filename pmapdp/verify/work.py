"""How the work is split: the operations of the busiest device beside those of the plain step."""

import math
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params

from pmapdp.verify import trees
from pmapdp.verify.case import Case, step_updates
from pmapdp.verify.cuts import Gradient
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.report import NotCheckedError
from pmapdp.verify.search import attempt

TOO_MUCH = 1.75  # times its part: what a device may do at most. Twice the work is more
SURE = 3  # times its part: what is too much where loops are estimated
PRODUCTS = ("dot_general", "ragged_dot", "conv_general_dilated")


def work_is_split(cases: list[Case]) -> Cause | None:
    """The busiest device makes about 1/N of the operations of the reference on the whole batch.

    The compiler's count of all programs that a call of the step runs: a Python function around a compiled step may run
    others. It counts a loop once, so that the lengths of the loops come from the traced programs.
    """
    trial, N, update = cases[0].trial, cases[0].trial.N, cases[0].update
    if N == 1:
        raise NotCheckedError("one device makes all of the work")
    whole = loops(jax.make_jaxpr(trial.reference.function)(*update.arguments))
    arguments = trial.convention.arguments(*trial.place(update))
    step = loops(jax.make_jaxpr(lambda: trial.step(*arguments))())
    if whole is None or step is None:
        raise NotCheckedError("the length of a loop is known only when it runs")
    programs = cases[0].programs
    if not programs:  # they were compiled before
        jax.clear_caches()
        programs = step_updates(trial, [update])[0].programs
    if not programs:
        raise NotCheckedError("the programs of the step are not in memory after a call")
    total = operations(trial.reference.compiled(update.arguments)) * whole.longer
    share = attempt(lambda: part_of(cases[0], whole)) or attempt(lambda: estimate(cases[0])) or 1.0
    if not 0 < share < 1 / TOO_MUCH:
        raise NotCheckedError("too little of the work depends on the number of examples")
    busy: dict[Any, float] = {}
    for program in programs:
        for device in program.local_devices():
            busy[device] = busy.get(device, 0.0) + operations(program) * step.longer
    ratio = max(busy.values()) / (total or 1)
    most = TOO_MUCH * share
    fixed = (share - 1 / N) / (1 - 1 / N)  # of the whole, what does not depend on the number of examples
    if most <= ratio < share + 3 * fixed:  # its own count may be larger where it is compiled in another way
        raise NotCheckedError(f"{fixed:.0%} of the work is the same for any number of examples: give a larger batch")
    looped = max(step.longer, whole.longer) > 1.01
    if looped and most <= ratio < SURE * share:
        raise NotCheckedError(f"the work in loops is an estimate, {ratio:.0%} of the whole on the busiest device")
    return named("every device computes everything", ratio=ratio, part=share) if ratio >= most else None


def part_of(case: Case, whole: "Work") -> float | None:
    """The work of the reference on one device's examples, as a fraction of that on the whole batch."""
    update, reference = case.update, case.trial.reference
    if not update.examples or reference.whole:
        return None
    part = (update.state, trees.parts(update.batch, case.trial.N, update.axis)[0], *update.key)
    found = loops(jax.make_jaxpr(reference.function)(*part))
    lowered = [operations(reference.jitted.lower(*arguments)) for arguments in (part, update.arguments)]
    return lowered[0] * found.longer / (lowered[1] * whole.longer) if found and lowered[1] else None


def estimate(case: Case) -> float:
    """The same of a reference that takes only the whole batch: all that comes before the gradient is divided by N."""
    gradient = Gradient(case.trial.reference, case.update)
    program, batch = gradient.program, gradient.inputs_of_batch
    before, after = (
        program.reaching(dict.fromkeys(batch, 1)),
        program.reaching(dict.fromkeys(gradient.cuts[-1].values, 1)),
    )
    work, divided = Work(), Work()
    for each in program.operations:
        of_batch = any(before.get(value) and not after.get(value) for value in each.outputs)
        count_one(each.equation, 1.0, divided if of_batch else work)
    return (divided.full / case.trial.N + work.full) / (divided.full + work.full)


def operations(program: Any) -> float:
    """Floating-point operations of a lowered program, or on one device of a compiled one, by the compiler's count."""
    return float((program.cost_analysis() or {}).get("flops", 0))


class Work:
    """What a traced program does: operations with loops as long as they are, and counted once."""

    def __init__(self) -> None:
        self.full = self.once = 0.0

    @property
    def longer(self) -> float:
        """How many times the work with loops is that of a count that takes each loop once."""
        return self.full / self.once if self.once else 1.0


def loops(closed: ClosedJaxpr) -> Work | None:
    """The work of a program; None where the length of a loop with products in it is known only when it runs."""
    work = Work()
    return work if count(closed.jaxpr, 1.0, work) else None


def count(jaxpr: Jaxpr, times: float, work: Work) -> bool:
    """Add the operations of a program that runs so many times; False where that cannot be known."""
    return all([count_one(equation, times, work) for equation in jaxpr.eqns])


def count_one(equation: Any, times: float, work: Work) -> bool:
    """Add one operation, and the programs in it."""
    name, inner = equation.primitive.name, list(jaxprs_in_params(equation.params))
    if name == "while":  # those without products draw random numbers and the like
        return not any(map(has_products, inner))
    if not inner:
        amount = size_of(equation)
        work.full, work.once = work.full + times * amount, work.once + amount
    if name == "cond":
        inner = sorted(inner, key=lambda each: sum(map(size_of, each.eqns)))[-1:]
    return all([count(each, times * equation.params["length"] if name == "scan" else times, work) for each in inner])


def has_products(jaxpr: Jaxpr) -> bool:
    """Whether a program contains products of matrices or convolutions."""
    return any(
        eqn.primitive.name in PRODUCTS or any(map(has_products, jaxprs_in_params(eqn.params))) for eqn in jaxpr.eqns
    )


def size_of(equation: Any) -> float:
    """The operations of one equation: two for every product and sum of a matrix product, one for every other number."""
    size = sum(math.prod(getattr(variable.aval, "shape", ())) for variable in equation.outvars)
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2.0 * size * math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
    if equation.primitive.name == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        features = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
        return 2.0 * size * math.prod(kernel) / features
    return float(size)
