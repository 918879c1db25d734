"""The function that users call: which devices, which precision, which checks."""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from pmapdp.verify import checks, efficiency, trees
from pmapdp.verify.history import Ran, Wanted, reference_updates, step_updates
from pmapdp.verify.layouts import Layout, as_layout
from pmapdp.verify.report import FAILED, NOT_CHECKED, Check, Report
from pmapdp.verify.rounding import computes_in_float64
from pmapdp.verify.runs import StepFailedError, Trial, user_code

COUNTS = (1, 2, 4, 8)


def verify(
    *,
    reference: Callable,
    state: Any,
    batch: Any,
    step: Callable | None = None,
    make_step: Callable[[Sequence[jax.Device]], Callable] | None = None,
    key: Any = None,
    layout: str | Layout | tuple = "stacked",
    last_batch: Any = None,
    devices: Sequence[jax.Device] | None = None,
    counts: Sequence[int] | None = None,
    updates: int = 3,
    float64: bool | None = None,
) -> Report:
    """Compare a training step on several devices with its reference on one.

    The reference's updates from `state` are compared with the step's, leaf by leaf; then the checks that need no
    reference are made. Where something differs, `verify` computes what the reference would return if the step made a
    known mistake (each device alone, the mean over devices, another scale, an example left out), and names the mistake
    whose result is the step's. Differences that rounding explains are no mistakes: see `pmapdp.verify.rounding`.

    Args:
        reference: `(state, batch, key) -> (state, metrics)` for one device, without collectives; any pytrees.
        state: what the training starts from, as for one device.
        batch: pytree of `[B, ...]`, as for one device. B should be a multiple of every number of devices.
        step: the same function as `reference`, pmapped, shard_mapped or jitted. It is run on all `devices`.
        make_step: a function of the devices that returns the step, in place of `step`: it is run on 1, 2, 4 and 8.
        key: what your loop passes: a key, the same in every update; or a function of the update's number (from 0) that
            returns one. None: both functions take `(state, batch)`.
        layout: how the step wants its arguments. `stacked`: a device axis `[N, ...]` on all, as of
            `flax.jax_utils.replicate`, the batch `[N, b, ...]`; `replicated`: only the batch has that axis
            (`pmap(in_axes=(None, 0, None))`); `sharded`: neither (jit, shard_map). Or a `Layout` of your own.
        last_batch: a ragged or padded last batch, as the reference takes it.
        devices: those to use; all of this process where None.
        counts: numbers of devices, for a `step` that takes any number (a pmap without `devices`) or for `make_step`.
        updates: how many in a row; three or more show whether the step is compiled again.
        float64: compute in float64; None where the program allows it.

    Returns:
        The report. An error that the step raises is a check that failed; one of the reference is raised.

    Raises:
        ValueError: arguments that contradict each other.

    It cannot see: a wrong scale of the gradient that clipping hides in every update here; a mistake that the reference
    makes too; transfers from the device to the host where both share memory, as on CPUs; mistakes that other data would
    show; in float32, differences below a thousandth of an update. It cannot tell a summed gradient from a learning
    rate times N under plain gradient descent. Where several operations couple the devices (batch norm over the global
    batch, clipping), it sees a difference but may not know the cause.
    """
    started = time.perf_counter()
    if (step is None) == (make_step is None):
        raise ValueError("verify takes either step, for all devices, or make_step, a function of the devices")
    devices = list(jax.devices() if devices is None else devices)
    if counts is None:
        counts = [len(devices)] if make_step is None else [N for N in COUNTS if len(devices) >= N]
    if bad := [N for N in counts if not 1 <= N <= len(devices)]:
        raise ValueError(f"counts={list(counts)} asks for {bad[0]} devices: there are {len(devices)}")
    if updates < 1:
        raise ValueError(f"updates={updates} makes no update: give 1 or more, for example 3")
    trees.number_of_examples(batch)
    key_of = key if callable(key) else (lambda update: key)
    maker: Any = make_step or (lambda _: step)
    plain = Trial(compiled(reference), compiled(reference), as_layout(layout), devices)
    program = Program(maker, plain, key_of, updates, sorted(counts))

    why_not = "as asked" if float64 is False else None
    if why_not is None:
        with jax.enable_x64(True):
            wide = trees.to_host((state, batch, last_batch), jax.numpy.float64)
            why_not = computes_in_float64(reference, wide[0], wide[1], key_of(0))
            if why_not is None:
                found = run_checks(program, *wide)
                raised = any(check.name == "runs" and check.status == FAILED for check in found)
                why_not = "the step raises an error with float64" if raised and float64 is None else None
    if why_not is not None:
        if float64:
            raise ValueError(f"float64=True cannot be had: {why_not}; leave it out")
        found = run_checks(program, *trees.to_host((state, batch, last_batch)))
    if make_step is None and len(counts) == 1:
        other = "a step is made for one number; give make_step, or counts where the step takes any number"
        found.append(Check("other numbers of devices", NOT_CHECKED, (), other))
    precision = "float64" if why_not is None else f"the given precision, not float64 ({why_not})"
    return Report(found, precision, time.perf_counter() - started)


class Program(NamedTuple):
    """What is verified: a function of the devices that makes the step, the reference with the layout and all devices
    (`plain`), the key of each update, the number of updates, and the numbers of devices."""

    make_step: Callable
    plain: Trial
    key_of: Callable[[int], Any]
    updates: int
    counts: Sequence[int]


def compiled(reference: Callable) -> Callable:
    """The reference, jitted unless it is already."""
    if hasattr(reference, "lower"):
        return reference
    return jax.jit(reference)


def run_checks(program: Program, state: Any, batch: Any, last_batch: Any) -> list[Check]:
    """All checks in one precision."""
    found: list[Check] = []
    wanted = reference_updates(program.plain, state, batch, program.key_of, program.updates)
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
        last_wanted = reference_updates(program.plain, state, last_batch, program.key_of, 1)
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
