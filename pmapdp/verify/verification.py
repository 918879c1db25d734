"""Verify a step: read the arguments, choose the precision, and make the checks."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from pmapdp.errors import FailedError, UserError
from pmapdp.files import load_from_file
from pmapdp.verify import trees
from pmapdp.verify.case import Case, Comparison
from pmapdp.verify.facts import (
    describe_metrics,
    describe_state,
    find_exchange,
    find_fixed_key,
    find_unsplit_work,
)
from pmapdp.verify.layouts import Layout, blame, choose_layout
from pmapdp.verify.reference import OldProgram, Reference, ReferenceUpdate
from pmapdp.verify.report import ArgumentsError, Check, CheckError, Report
from pmapdp.verify.table import Fact, few, find_rows

NAMES_A_LINE = 3  # of leaves that a reader copies from the report


def verify(
    *,
    step: Callable,
    reference: Callable | OldProgram,
    state: Any,
    batch: Any = None,
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
        step: The same function as `reference`, pmapped, shard_mapped or jitted.
        reference: The plain step for one device, without collectives, or
            `one_device(step, axis_name)`, or `old_program(step, axis_name, groups)`.
        state: What the training starts from, as for one device. Leaves that
            `per_device` names are `[N, ...]`.
        batch: `[B, ...]`, or a function of the update's number, from 0, that returns
            one. None: the step takes none.
        key: What your loop passes: a key, the same in every update, or a function of
            the update's number. None: no key.
        layout: How the step's arguments are placed: `stacked`, `replicated` or
            `sharded`, the batch's sharding, or a `Layout`.
        per_device: Parts of the paths of leaves of which each device has its own, as
            "batch_stats" or "opt/key"; "key" is that argument, "metrics/loss" a metric.
        batch_axis: The axis of the examples in the batch: 1 for `[n_steps, B, ...]`.
        last_batch: A ragged or padded last batch, as the reference takes it, for one
            more update.
        devices: Those to use. None: `jax.devices()`.
        updates: How many in a row.
        float64: Compute in float64 if the program allows it; False: in the types that
            are given.

    Returns:
        The report. In it, an error of the step is a check that failed.

    Raises:
        ArgumentsError: A ValueError that says in one sentence why arguments cannot be
            used. An error of the reference is raised as it is.
    """
    state = jax.tree.map(
        lambda x: x if hasattr(x, "dtype") else np.asarray(x, jnp.result_type(x)), state
    )
    plain = Reference(reference, state, per_device, batch_axis)
    devices = devices or jax.devices()
    if plain.groups:
        devices = devices[: plain.groups]
    batches, keys = list_inputs(batch, last_batch, key, updates)
    report = compare_in_best_type(
        Comparison(
            step,
            plain,
            choose_layout(layout, batch_axis),
            devices,
            state,
            batches,
            keys,
        ),
        float64,
    )
    if last_batch is None and batch is not None:
        why = "give last_batch, if yours is uneven or padded"
        report.checks.append(Check("last batch", "not checked", sentence=why))
    return report


def list_inputs(
    batch: Any, last_batch: Any, key: Any, updates: int
) -> tuple[list[Any], list[tuple[Any, ...]]]:
    """Return the batch of each update, and its key in a tuple, empty without one."""

    def value_of(value: Any, update: int) -> Any:
        return value(update) if callable(value) else value

    batches = [value_of(batch, update) for update in range(updates)]
    if last_batch is not None:
        batches.append(last_batch)
    if key is None:
        return batches, [() for _ in batches]
    return batches, [(value_of(key, update),) for update in range(len(batches))]


def compare_in_best_type(comparison: Comparison, float64: bool) -> Report:
    """Compare in float64, or else in the types that are given."""
    with jax.transfer_guard("allow"):  # programs are given arrays of the host
        why_not = "as asked"
        if float64:
            try:
                with jax.enable_x64(True):
                    return compare_in(comparison, np.float64, "float64")
            except ArgumentsError:
                raise
            except CheckError as error:
                why_not = str(error)
            except Exception as error:
                why_not = f"the reference raises {type(error).__name__}"
        precision = f"the given types, not float64 ({why_not})"
        return compare_in(comparison, None, precision)


def compare_in(comparison: Comparison, dtype: Any, precision: str) -> Report:
    """Make the updates and all checks in one type, or in the given ones.

    Raises:
        CheckError: Why it can't be done in this type.
    """
    plain = comparison.reference
    inputs = (comparison.state, comparison.batches)
    state, batches = trees.to_host(inputs, dtype)
    narrowest = plain.check((state, batches[0], *comparison.keys[0]))
    if dtype and narrowest != dtype:
        raise CheckError(f"given float64, the reference computes in {narrowest}")
    updates = plain.make_updates(state, batches, comparison.keys, narrowest)
    cases, checks = run_cases(comparison, updates, dtype)
    exchange = ""
    if cases:
        checks += make_checks(cases)
        exchange = find_exchange(cases[0])
    kinds = dict(updates[0].kinds)
    for update in updates:  # what rounding hides in one update is blind
        kinds |= dict.fromkeys(update.blind, "blind")
    N = len(comparison.devices)
    report = Report(checks, kinds, N, len(cases), precision, plain.unseen, exchange)
    report.checks.extend(find_gaps(report, updates))
    return report


def run_cases(
    comparison: Comparison, updates: list[ReferenceUpdate], dtype: Any
) -> tuple[list[Case], list[Check]]:
    """Run the step in each update, or as far as it can, and make a check if it fails.

    Raises:
        CheckError: If the step fails in float64, but may run in the given types.
    """
    cases: list[Case] = []
    try:
        for update in updates:  # each from the reference's state
            cases.append(Case(comparison, update))  # noqa: PERF401  # some may fail
    except Exception as error:
        status = error.status if isinstance(error, CheckError) else "FAILED"
        if dtype and status == "FAILED":
            raise CheckError("the step raises an error with float64") from error
        # A ragged last batch may not divide: the others are compared.
        if status == "FAILED" or not cases:
            return [], [Check("runs", status, len(comparison.devices), blame(error))]
    return cases, []


def make_checks(cases: list[Case]) -> list[Check]:
    """Compare the results, and look at keys and work."""
    results = [check_results(cases, metrics=False), check_results(cases, metrics=True)]
    others = [
        check_by("random numbers advance", find_fixed_key, cases),
        check_by("the work is split", find_unsplit_work, cases),
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
    N = cases[0].N
    try:
        facts = look(cases)
    except CheckError as error:
        return Check(name, error.status, N, str(error))
    except Exception as error:  # the step may be correct all the same
        return Check(name, "not checked", N, blame(error))
    if not facts:
        return Check(name, "passed", N)
    sentences = tuple(fact.sentence for fact in facts)
    return Check(name, "FAILED", N, facts=sentences, rows=find_rows(facts))


def check_results(cases: list[Case], metrics: bool) -> Check:
    """Check that the state, or the metrics, equal the reference's in every update."""
    name = "same metrics" if metrics else "same update"
    N = cases[0].N
    for case in cases:
        if case.wrong(metrics):
            return describe_difference(name, case, cases[0], metrics)
    leaves: dict[str, tuple[float, float]] = {}  # how far each is off at most
    for case in cases:
        for leaf, error in case.errors.items():
            if case.reference.is_metric(leaf) == metrics:
                leaves[leaf] = max(error, leaves.get(leaf, error))
    if leaves:
        return Check(name, "passed", N, leaves=leaves)
    part = "metrics" if metrics else "state"
    why = f"the step returns no {part} that can be compared"
    return Check(name, "not checked", N, why)


def describe_difference(name: str, case: Case, first: Case, metrics: bool) -> Check:
    """Say which leaves differ, from which update on, and what is known about that."""
    leaves = case.wrong(metrics)
    number = case.update.number + 1
    of = sum(case.reference.is_metric(leaf) == metrics for leaf in case.errors)
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
        case.N,
        f"{sentence}.",
        tuple(fact.sentence for fact in facts),
        find_rows(facts),
        leaves,
        number,
    )


def find_gaps(report: Report, updates: list[ReferenceUpdate]) -> list[Check]:
    """Say which leaves were not compared, and which updates on one device at most."""
    gaps = []
    raised = any(check.name == "runs" for check in report.failed)
    compared = report.updates if report.devices > 1 else 0
    if compared < len(updates) and not raised:
        sentence = (
            f"update {compared + 1} was compared on no more than one device. "
            "JAX_PLATFORMS=cpu lets pmapdp simulate eight; if its "
            f"{updates[compared].examples} examples do not divide, give a Layout that "
            "pads them"
        )
        gaps.append(Check("several devices", "not compared", sentence=sentence))
    if report.blind:
        sentence = (
            f"rounding changes {few(report.blind)} by more than 30 % of their update. "
            "Give a state and data with larger updates, or accept it:"
        )
        lines = []
        for start in range(0, len(report.blind), NAMES_A_LINE):
            names = report.blind[start : start + NAMES_A_LINE]
            lines.append(", ".join(map(repr, names)))
        names_in_lines = ",\n".join(lines)
        accept = f"report.require(not_compared=[{names_in_lines}])"
        gaps.append(
            Check("every leaf", "not compared", sentence=sentence, facts=(accept,))
        )
    elif "close" not in report.kinds.values():
        sentence = "no leaf holds floating-point numbers"
        gaps.append(Check("every leaf", "not compared", sentence=sentence))
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
        arguments = {"devices": devices, **function()}
        call = inspect.signature(verify).bind(**arguments)
        report = verify(**call.arguments)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise FailedError(f"{target} fails: {blame(error)}") from error
    call.apply_defaults()
    return call.arguments, report
