"""All checks of a program in one precision, on every number of devices."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pmapdp.verify import checks, efficiency, trees
from pmapdp.verify.history import Ran, Wanted, reference_updates, step_updates
from pmapdp.verify.report import FAILED, NOT_CHECKED, Check
from pmapdp.verify.runs import StepFailedError, Trial, user_code


class Program(NamedTuple):
    """What is verified."""

    make_step: Callable
    plain: Trial
    key_of: Callable[[int], Any]
    counts: Sequence[int]


def run_checks(program: Program, state: Any, batches: Sequence[Any], last_batch: Any) -> list[Check]:
    """All checks in one precision."""
    found: list[Check] = []
    wanted = reference_updates(program.plain, state, batches, program.key_of)
    rans = run_counts(program, wanted, found)
    if not rans:
        return found
    most = rans[-1]
    random = guarded(checks.random_numbers_advance, "random numbers advance", most, wanted)
    for check in checks.same_results(rans, wanted):
        if random.status == FAILED and check.cause == "unknown":
            check = check._replace(sentence="The random numbers differ, as below.", cause="follows")
        found.append(check)
    found += together([checks.replicas_agree(ran, wanted) for ran in rans])
    found.append(random)
    name = "same update, last batch"
    if last_batch is None:
        found.append(Check(name, NOT_CHECKED, (), "give last_batch, if yours is uneven or padded"))
    elif any(check.status == FAILED for check in found):
        found.append(Check(name, NOT_CHECKED, (), "correct the other updates first"))
    else:
        last_wanted = reference_updates(program.plain, state, [last_batch], program.key_of)
        found += checks.same_results(run_counts(program, last_wanted, found), last_wanted, ", last batch")
    found.append(efficiency.work_is_split(most, wanted))
    found += together([efficiency.compiled_once(ran) for ran in rans])
    found.append(efficiency.no_transfers(most))
    return found


def run_counts(program: Program, wanted: Wanted, found: list[Check]) -> list[Ran]:
    """The step's updates on every number of devices that works; what does not work goes to `found`."""
    rans = []
    B = trees.number_of_examples(wanted.updates[0].batch)
    for N in program.counts:
        if program.plain.layout.divides and B % N:
            why = f"{B} examples do not divide over {N} devices; a Layout of your own can pad them"
            found.append(Check("runs", NOT_CHECKED, (N,), why))
            continue
        devices = program.plain.devices[:N]
        try:
            with user_code("make_step", N):
                trial = program.plain._replace(step=program.make_step(devices), devices=devices)
            rans.append(step_updates(trial, wanted))
        except StepFailedError as error:
            found.append(Check("runs", FAILED, (N,), str(error), error.cause))
    return rans


def guarded(check: Callable[..., Check], name: str, ran: Ran, *arguments: Any) -> Check:
    """A check that runs the step once more on other arguments, which the step may refuse."""
    try:
        return check(ran, *arguments)
    except StepFailedError as error:
        return Check(name, NOT_CHECKED, (ran.trial.N,), str(error))


def together(each: list[Check]) -> list[Check]:
    """Checks on several numbers of devices: those that passed as one, and of those that failed the last."""
    merged = []
    for status in dict.fromkeys(check.status for check in each):
        same = [check for check in each if check.status == status]
        merged.append(same[-1]._replace(devices=tuple(check.devices[0] for check in same)))
    return merged
