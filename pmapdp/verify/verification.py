"""Verify a step: read the arguments, choose the precision, run both, and report."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from rich.filesize import decimal

from pmapdp.collectives import describe_exchange, instructions
from pmapdp.errors import FailedError, UserError
from pmapdp.files import load_from_file
from pmapdp.verify import trees
from pmapdp.verify.checks import make_checks
from pmapdp.verify.layouts import Layout, choose_layout
from pmapdp.verify.mistakes import Fact
from pmapdp.verify.reference import UNSEEN_BY_ONE_DEVICE, MappedStep, Reference
from pmapdp.verify.report import (
    ArgumentsError,
    Check,
    CheckError,
    Report,
    describe_error,
)
from pmapdp.verify.step_update import Step, StepUpdate
from pmapdp.verify.thresholds import UNSTABLE_FRACTION
from pmapdp.verify.tolerances import ReferenceUpdate, make_updates, narrowest_type
from pmapdp.verify.trees import first_names

NAMES_A_LINE = 3  # of leaves that a reader copies from the report


def verify(
    *,
    step: Callable,
    reference: Callable | MappedStep,
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
        step: Your training step for several devices: pmapped, shard_mapped or jitted.
        reference: The same step for one device: a plain function without collectives,
            or `one_device(step, axis_name)`, or `old_program(step, axis_name, groups)`.
        state: The state that training starts from, as one device has it. Leaves that
            `per_device` names have a row for each device, `[N, ...]`.
        batch: The global batch `[B, ...]`, or a function that takes the update's
            number, from 0, and returns its batch. None: the step takes no batch.
        key: The random key that your loop passes, the same in every update, or a
            function that takes the update's number. None: the step takes no key.
        layout: How the arguments are placed on the devices. "stacked": with pmap's
            device axis. "replicated": as pmap with `in_axes=(None, 0, None)` takes
            them. "sharded": as jit and shard_map take them. Or the batch's
            `NamedSharding`, or a `Layout`.
        per_device: The leaves of which each device has its own, by parts of their
            paths, such as "batch_stats" or "opt/key". "key" is that argument, and
            "metrics/loss" a metric.
        batch_axis: The axis of the examples in the batch: 1 for `[n_steps, B, ...]`.
        last_batch: A smaller or padded last batch, as the reference takes it. It makes
            one more update.
        devices: The devices to use. None: `jax.devices()`.
        updates: The number of updates to compare, one after the other.
        float64: Compute in float64 if the program allows it. False: in the types that
            you give.

    Returns:
        A `Report` to print. Its `ok` is True if all was compared and nothing failed,
        and its `require()` raises an error if not. An error in the step is a check that
        failed.

    Raises:
        ArgumentsError: The arguments can't be used. It's a ValueError. An error of the
            reference is raised as it is.

    Example:
        report = verify(
            step=jax.pmap(step, "devices"),
            reference=one_device(step, "devices"),
            state=jnp.ones(3),
            batch=jnp.linspace(0, 1, 48).reshape(16, 3),
        )
    """
    state = jax.tree.map(make_array, state)
    reference_program = Reference(reference, state, per_device, batch_axis)
    if inspect.unwrap(step) is inspect.unwrap(reference_program.step):
        reference_program.unseen = reference_program.unseen or UNSEEN_BY_ONE_DEVICE
    devices = devices or jax.devices()
    if reference_program.groups > 1:
        devices = devices[: reference_program.groups]
    placed_step = Step(
        step, reference_program, choose_layout(layout, batch_axis), devices
    )
    batches = [resolve_value(update, batch) for update in range(updates)]
    if last_batch is not None:
        batches.append(last_batch)
    keys = [resolve_value(update, key) for update in range(len(batches))]
    report = compare_in_best_type(placed_step, batches, keys, float64)
    if last_batch is None and batch is not None:
        why = "give last_batch, if yours is uneven or padded"
        report.checks.append(Check("last batch", "not checked", sentence=why))
    return report


def make_array(leaf: Any) -> Any:
    """Make an array of a Python number, and leave arrays and keys as they are."""
    if hasattr(leaf, "dtype"):
        return leaf
    return np.asarray(leaf, jnp.result_type(leaf))


def resolve_value(update: int, value: Any) -> Any:
    """Return the batch or the key of an update: `value`, or `value(update)`."""
    if callable(value):
        return value(update)
    return value


def compare_in_best_type(
    step: Step, batches: list[Any], keys: list[Any], float64: bool
) -> Report:
    """Compare in float64, or in the given types if the program doesn't allow it."""
    with jax.transfer_guard("allow"):  # the programs take arrays of the host
        why_not = "as asked"
        if float64:
            try:
                with jax.enable_x64(True):
                    return compare(step, batches, keys, np.float64)
            except ArgumentsError:
                raise
            except CheckError as error:
                why_not = str(error)
            except Exception as error:
                why_not = f"the reference raises {type(error).__name__}"
        report = compare(step, batches, keys, None)
        return report._replace(precision=f"the given types, not float64 ({why_not})")


def compare(step: Step, batches: list[Any], keys: list[Any], dtype: Any) -> Report:
    """Make the updates and all checks in one type.

    Args:
        step: The step on its devices.
        batches: The batch of each update.
        keys: The key of each update.
        dtype: float64, or None for the types that are given.

    Raises:
        CheckError: The program doesn't compute in this type.
    """
    reference = step.reference
    state, batches = trees.to_host((reference.state, batches), dtype)
    narrowest = narrowest_type(reference.trace((state, batches[0], keys[0])))
    if dtype and narrowest != dtype:
        raise CheckError(f"given float64, the reference computes in {narrowest}")
    expected = make_updates(reference, state, batches, keys, narrowest)
    updates, checks = run_step(step, expected, dtype)
    exchange = ""
    if updates:
        checks += make_checks(updates)
        exchange = find_exchange(updates[0])
    report = Report(
        checks=checks,
        kinds=collect_kinds(expected),
        devices=len(step.devices),
        updates=len(updates),
        precision="float64",
        unseen=reference.unseen,
        exchange=exchange,
    )
    report.checks.extend(find_missing_devices(report, expected))
    report.checks.extend(find_missing_leaves(report))
    return report


def collect_kinds(expected: list[ReferenceUpdate]) -> dict[str, str]:
    """Return how each leaf is compared. Unstable in one update, it isn't proven."""
    kinds: dict[str, str] = {}
    for update in expected:
        for name, leaf in update.leaves.items():
            if leaf.kind == "unstable" or name not in kinds:
                kinds[name] = leaf.kind
    return kinds


def find_exchange(update: StepUpdate) -> str:
    """Say what the devices exchange in an update, or nothing if that can't be found.

    Beside it stands the size of the gradients, if the state has a part called `params`.
    """
    try:
        text = describe_exchange(instructions(update.compiled.as_text()))
    except Exception:  # a step need not be traceable as a whole
        return ""
    params = []
    for name, leaf in trees.leaves_by_name(update.expected.state).items():
        is_param = name.split("/")[0] == "params" and trees.is_float(leaf)
        if is_param and not update.reference.is_per_device(name):
            params.append(leaf)
    if params:
        size = decimal(sum(leaf.nbytes for leaf in params))
        text += f". The leaves of params, and so their gradients, take {size}"
    return text


def run_step(
    step: Step, expected: list[ReferenceUpdate], dtype: Any
) -> tuple[list[StepUpdate], list[Check]]:
    """Run the step in each update, until it fails.

    Returns:
        The updates, and if the step failed the check that says why.

    Raises:
        CheckError: The step fails in float64, and may run in the given types.
    """
    updates: list[StepUpdate] = []
    try:
        for expected_update in expected:
            update = StepUpdate(step, expected_update)
            updates.append(update)
    except Exception as error:
        check = Check.from_error("runs", len(step.devices), error, "FAILED")
        if dtype and check.status == "FAILED":
            raise CheckError("the step raises an error with float64") from error
        # If only the last batch doesn't divide over the devices, the others count.
        if check.status == "FAILED" or not updates:
            return [], [check]
    return updates, []


def find_missing_devices(
    report: Report, expected: list[ReferenceUpdate]
) -> list[Check]:
    """Make a check if the step ran on only one device, or if an update is missing."""
    if any(check.name == "runs" for check in report.failed):
        return []
    if report.devices == 1:
        sentence = (
            "the step ran on one device, which says nothing about several. "
            "JAX_PLATFORMS=cpu lets pmapdp simulate eight"
        )
    elif report.updates < len(expected):
        sentence = (
            f"update {report.updates + 1} was not compared. If its "
            f"{expected[report.updates].examples} examples do not divide over "
            f"{report.devices} devices, give a Layout that pads them"
        )
    else:
        return []
    return [Check("several devices", "not compared", sentence=sentence)]


def find_missing_leaves(report: Report) -> list[Check]:
    """Make a check of leaves that rounding decides, or if none holds floats."""
    if report.unstable:
        sentence = (
            f"rounding changes {first_names(report.unstable)} by more than "
            f"{UNSTABLE_FRACTION:.0%} of their update. Give a state and data with "
            "larger updates, or accept it:"
        )
        facts = [Fact(require_without(report.unstable))]
    elif "close" not in report.kinds.values():
        sentence = "no leaf holds floating-point numbers"
        facts = []
    else:
        return []
    return [Check("every leaf", "not compared", sentence=sentence, facts=facts)]


def require_without(names: list[str]) -> str:
    """Return a call of `require` for the reader to copy, with few names a line."""
    starts = range(0, len(names), NAMES_A_LINE)
    lines = [str(names[start : start + NAMES_A_LINE])[1:-1] for start in starts]
    return "report.require(not_compared=[" + ",\n".join(lines) + "])"


def verify_program(
    target: str, devices: Sequence[jax.Device]
) -> tuple[dict[str, Any], Report]:
    """Call `verify` with the arguments that FILE.py:FUNCTION returns.

    Returns:
        The arguments, with their defaults, and the report.
    """
    function = load_from_file(target)
    signature = inspect.signature(function)
    try:
        signature.bind()
    except TypeError:
        raise UserError(
            f"{target} takes {', '.join(signature.parameters)}: name a function "
            "without arguments that returns verify's arguments in a dictionary "
            "(docs/verify.md in pmapdp's repository)"
        ) from None
    try:
        arguments = {"devices": devices, **function()}
        call = inspect.signature(verify).bind(**arguments)
        report = verify(**call.arguments)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise FailedError(f"{target} fails: {describe_error(error)}") from error
    call.apply_defaults()
    return call.arguments, report
