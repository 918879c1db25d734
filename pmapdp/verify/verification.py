"""Verify a step: read the arguments, choose the precision, and make the checks."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from pmapdp.errors import FailedError, UserError
from pmapdp.files import load_from_file
from pmapdp.verify import trees
from pmapdp.verify.case import Case
from pmapdp.verify.facts import (
    describe_metrics,
    describe_state,
    find_exchange,
    find_fixed_key,
    find_unsplit_work,
)
from pmapdp.verify.layouts import Layout, blame, choose_layout
from pmapdp.verify.reference import OldProgram, Reference, Update
from pmapdp.verify.report import ArgumentsError, Check, CheckError, Report
from pmapdp.verify.table import Fact, find_rows

Runs = dict[int, list[Case]]  # by the number of devices, a case for each update


def verify(
    *,
    reference: Callable | OldProgram,
    state: Any,
    batch: Any = None,
    step: Callable | None = None,
    make_step: Callable[[Sequence[jax.Device]], Callable] | None = None,
    key: Any = None,
    layout: str | Layout | NamedSharding = "stacked",
    per_device: str | Sequence[str] = (),
    batch_axis: int = 0,
    last_batch: Any = None,
    devices: Sequence[jax.Device] | None = None,
    updates: int = 3,
    float64: bool = True,
) -> Report:
    """Compare a training step on several devices with its reference on one.

    Both are called as `step(state, batch, key)`, without what you leave out, and return
    the new state or `(state, metrics)`. docs/verify.md has wrappers for other steps.

    Args:
        reference: the plain step for one device, without collectives, or
            `one_device(step, axis_name)`, or `old_program(step, axis_name, groups)`.
        state: what the training starts from, as for one device. Leaves that
            `per_device` names are `[N, ...]`.
        batch: `[B, ...]`, or a function of the update's number, from 0, that returns
            one. None: the step takes none.
        step: the same function as `reference`, pmapped, shard_mapped or jitted. It is
            run on all `devices`.
        make_step: a function of the devices that returns the step, in place of `step`:
            it is run on 1, 2, 4 and 8.
        key: what your loop passes: a key, the same in every update, or a function of
            the update's number. None: no key.
        layout: of the step's arguments: `stacked`, `replicated` or `sharded`, the
            batch's sharding, or a `Layout`.
        per_device: parts of the paths of leaves of which each device has its own, as
            "batch_stats" or "opt/key"; "key" is that argument, "metrics/loss" a metric.
        batch_axis: of the examples in the batch: 1 for `[n_steps, B, ...]`.
        last_batch: a ragged or padded last batch, as the reference takes it, for one
            more update.
        devices: those to use. None: `jax.devices()`.
        updates: how many in a row.
        float64: compute in float64 if the program allows it; False: in the types that
            are given.

    Returns:
        The report. In it, an error of the step is a check that failed.

    Raises:
        ArgumentsError: a ValueError that says in one sentence why arguments cannot be
            used. An error of the reference is raised as it is.
    """
    if (step is None) == (make_step is None):
        raise ArgumentsError(
            "verify takes either step, for all devices, or make_step, a function of "
            "the devices"
        )
    if devices is None:
        devices = jax.devices()
    batches, keys = list_inputs(batch, last_batch, key, updates)
    state = jax.tree.map(
        lambda x: x if hasattr(x, "dtype") else np.asarray(x, jnp.result_type(x)), state
    )
    if isinstance(per_device, str):
        per_device = [per_device]
    plain = Reference(reference, state, per_device, batch_axis)
    counts = [len(devices)]
    if plain.groups:
        counts = [plain.groups]
    elif make_step:
        counts = [N for N in (1, 2, 4, 8) if len(devices) >= N]

    def make_given_step(_: Sequence[jax.Device]) -> Any:
        return step

    task = Task(
        plain,
        make_step or make_given_step,
        choose_layout(layout, batch_axis),
        [devices[:N] for N in counts],
        state,
        batches,
        keys,
    )
    found, why_not = run_in_best_type(task, float64)
    checks, made, runs, _ = found
    checks += list_skipped(batch, last_batch, make_step)
    on = {}
    for each in made:
        compared = [N for N, cases in runs.items() if each.number < len(cases)]
        on[each.number + 1] = tuple(compared)
    kinds = join_kinds(made)
    checks += find_gaps(checks, kinds, on, made)
    precision = "float64"
    if why_not:
        precision = f"the given types, not float64 ({why_not})"
    return Report(checks, kinds, on, precision, plain.unseen, found.exchange)


def list_inputs(
    batch: Any, last_batch: Any, key: Any, updates: int
) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """Return the batch of each update, and its key in a tuple, empty without one."""
    batches = [batch(update) if callable(batch) else batch for update in range(updates)]
    if last_batch is not None:
        batches.append(last_batch)
    keys: list[tuple[Any, ...]] = []
    for update in range(len(batches)):
        if key is None:
            keys.append(())
        elif callable(key):
            keys.append((key(update),))
        else:
            keys.append((key,))
    return batches, keys


def list_skipped(batch: Any, last_batch: Any, make_step: Any) -> list[Check]:
    """Return the checks for which an argument wasn't given."""
    skipped = []
    if last_batch is None and batch is not None:
        why = "give last_batch, if yours is uneven or padded"
        skipped.append(Check("last batch", "not checked", sentence=why))
    if make_step is None:
        why = "give make_step"
        skipped.append(Check("other numbers of devices", "not checked", sentence=why))
    return skipped


def join_kinds(updates: list[Update]) -> dict[str, str]:
    """Return the kinds of the leaves: what rounding hides in one update is blind."""
    kinds = dict(updates[0].kinds)
    for each in updates:
        for name, kind in each.kinds.items():
            if kind == "blind":
                kinds[name] = "blind"
    return kinds


class Task(NamedTuple):
    """What is compared: the reference, and the step on some numbers of devices.

    Attributes:
        reference: the reference.
        make_step: returns the step for some devices.
        layout: of the step's arguments.
        devices: the first 1, 2, 4 and 8, or all.
        state: what the training starts from.
        batches: one for each update.
        keys: one key for each update, in a tuple, or an empty one.
    """

    reference: Reference
    make_step: Callable[[Sequence[jax.Device]], Any]
    layout: Layout
    devices: list[Sequence[jax.Device]]
    state: Any
    batches: list[Any]
    keys: list[tuple[Any, ...]]


class Found(NamedTuple):
    """What came out.

    Attributes:
        checks: of the results, the random numbers and the work.
        updates: the reference's.
        runs: the step's.
        exchange: what the devices exchange in an update.
    """

    checks: list[Check]
    updates: list[Update]
    runs: Runs
    exchange: str


def run_in_best_type(task: Task, float64: bool) -> tuple[Found, str]:
    """Make the updates and all checks in float64, or else in the types that are given.

    Returns:
        What came out, and why it was not float64.
    """
    with jax.transfer_guard("allow"):  # programs are given arrays of the host
        why_not = "as asked"
        if float64:
            try:
                with jax.enable_x64(True):
                    return run_in(task, np.float64), ""
            except ArgumentsError:
                raise
            except CheckError as error:
                why_not = str(error)
            except Exception as error:
                why_not = f"the reference raises {type(error).__name__}"
        return run_in(task, None), why_not


def run_in(task: Task, dtype: Any) -> Found:
    """Make the updates and all checks in one type, or in the given ones.

    Raises:
        CheckError: why it can't be done in this type.
    """
    state, batches = trees.to_host((task.state, task.batches), dtype)
    narrowest = task.reference.check((state, batches[0], *task.keys[0]))
    if dtype and narrowest != dtype:
        raise CheckError(f"given float64, the reference computes in {narrowest}")
    made = task.reference.make_updates(state, batches, task.keys, narrowest)
    checks = []
    runs: Runs = {}
    for devices in task.devices:
        N = len(devices)
        cases: list[Case] = []
        try:
            step = task.make_step(devices)
            for update in made:  # each from the reference's state
                case = Case(step, task.reference, task.layout, devices, update)
                cases.append(case)
        except Exception as error:
            status = error.status if isinstance(error, CheckError) else "FAILED"
            if dtype and status == "FAILED":
                raise CheckError("the step raises an error with float64") from error
            # A ragged last batch may not divide: the others are compared.
            if status == "FAILED" or not cases:
                checks.append(Check("runs", status, (N,), blame(error)))
                continue
        runs[N] = cases
    checks += make_checks(runs)
    exchange = ""
    if runs:
        exchange = find_exchange(runs[max(runs)][0])
    return Found(checks, made, runs, exchange)


def make_checks(runs: Runs) -> list[Check]:
    """Compare the results on every number of devices, and look at keys and work.

    The last two are seen on the largest number.
    """
    results = check_results(runs, metrics=False) + check_results(runs, metrics=True)
    if not runs:
        return results
    others = [
        check_by("random numbers advance", find_fixed_key, runs[max(runs)]),
        check_by("the work is split", find_unsplit_work, runs[max(runs)]),
    ]
    if any(check.status == "FAILED" for check in others):
        # Then the results look like mistakes that nobody made.
        follows = (
            "This may follow from what another check found. Correct that one first."
        )
        for number, check in enumerate(results):
            if check.status == "FAILED":
                results[number] = check._replace(sentence=follows, facts=(), rows=())
    return results + others


def check_by(
    name: str, look: Callable[[list[Case]], list[Fact]], cases: list[Case]
) -> Check:
    """Make a check that fails if it finds facts."""
    on = (cases[0].N,)
    try:
        facts = look(cases)
    except CheckError as error:
        return Check(name, error.status, on, str(error))
    except Exception as error:  # the step may be correct all the same
        return Check(name, "not checked", on, blame(error))
    if not facts:
        return Check(name, "passed", on)
    sentences = tuple(fact.sentence for fact in facts)
    return Check(name, "FAILED", on, facts=sentences, rows=find_rows(facts))


def check_results(runs: Runs, metrics: bool) -> list[Check]:
    """Check that the state, or the metrics, equal the reference's in every update."""
    name = "same metrics" if metrics else "same update"
    wrong: dict[int, Case] = {}  # the first that differs, by the number of devices
    for N, cases in runs.items():
        differing = [case for case in cases if case.wrong(metrics)]
        if differing:
            wrong[N] = differing[0]
    checks = []
    equal = tuple(N for N in runs if N not in wrong)
    if equal:
        leaves = find_largest([case for N in equal for case in runs[N]], metrics)
        if leaves:
            checks.append(Check(name, "passed", equal, leaves=leaves))
        else:
            what = "metrics" if metrics else "state"
            why = f"the step returns no {what} that can be compared"
            checks.append(Check(name, "not checked", equal, why))
    if wrong:
        N = max(wrong)  # more devices tell mistakes apart more surely
        checks.append(
            describe_difference(name, wrong[N], runs[N][0], metrics, tuple(wrong))
        )
    return checks


def find_largest(cases: list[Case], metrics: bool) -> dict[str, tuple[float, float]]:
    """Return how far each leaf of the state, or metric, is off at most."""
    leaves: dict[str, tuple[float, float]] = {}
    for case in cases:
        for leaf, off in case.off.items():
            if case.reference.is_metric(leaf) == metrics:
                leaves[leaf] = max(off, leaves.get(leaf, off))
    return leaves


def describe_difference(
    name: str, case: Case, first: Case, metrics: bool, devices: tuple[int, ...]
) -> Check:
    """Say which leaves differ, from which update on, and what is known about that."""
    leaves = case.wrong(metrics)
    number = case.update.number + 1
    of = sum(case.reference.is_metric(leaf) == metrics for leaf in case.off)
    sentence = f"{len(leaves)} of {of} leaves differ, from update {number} on"
    if case.update.examples != first.update.examples:
        sentence += f", the only one with {case.update.examples} examples"
    if case.N > 1:
        differ = any(case.differs_between_devices(leaf) for leaf in leaves)
        values = "different values" if differ else "the same values"
        sentence += f"; the devices hold {values}"
    facts = describe_metrics(case) if metrics else describe_state(case)
    if metrics and case.wrong() and not facts:
        sentence += "; the state differs, too, so look at that first"
    return Check(
        name,
        "FAILED",
        devices,
        f"{sentence}.",
        tuple(fact.sentence for fact in facts),
        find_rows(facts),
        leaves,
        number,
    )


def find_gaps(
    checks: list[Check],
    kinds: dict[str, str],
    on: dict[int, tuple[int, ...]],
    updates: list[Update],
) -> list[Check]:
    """Say which leaves were not compared, and which updates on one device at most."""
    gaps = []
    raised = any(check.name == "runs" and check.status == "FAILED" for check in checks)
    lacking = [each for each in updates if max(on[each.number + 1], default=0) < 2]
    if lacking and not raised:
        number = lacking[0].number + 1
        gaps.append(
            Check(
                "several devices",
                "not compared",
                sentence=f"update {number} was compared on no more than one device. "
                "JAX_PLATFORMS=cpu lets pmapdp simulate eight; if its "
                f"{lacking[0].examples} examples do not divide, give a Layout that "
                "pads them",
            )
        )
    blind = [name for name, kind in kinds.items() if kind == "blind"]
    if blind:
        gaps.append(
            Check(
                "every leaf",
                "not compared",
                sentence=f"rounding changes these leaves by more than 30 % of their "
                "update. Give a state and data with larger updates, or accept it: "
                f"report.require(not_compared={blind})",
            )
        )
    elif "close" not in kinds.values():
        gaps.append(
            Check(
                "every leaf",
                "not compared",
                sentence="no leaf holds floating-point numbers",
            )
        )
    return gaps


def verify_program(
    target: str, devices: Sequence[jax.Device]
) -> tuple[dict[str, Any], Report]:
    """Call `verify` with the arguments that FILE.py:FUNCTION returns.

    Returns:
        The arguments, with their defaults, and the report.
    """
    function = load_from_file(target)
    try:
        call = inspect.signature(verify).bind(**{"devices": devices, **function()})
        report = verify(**call.arguments)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise FailedError(f"{target} fails: {blame(error)}") from error
    call.apply_defaults()
    return call.arguments, report
