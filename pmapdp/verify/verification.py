"""The function that users call: its arguments, the precision, and the checks one after the other."""

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from pmapdp.errors import shown
from pmapdp.verify import trees
from pmapdp.verify.causes import Case
from pmapdp.verify.checks import all_checks
from pmapdp.verify.layouts import Layout, choose_layout
from pmapdp.verify.reference import Grouped, Reference
from pmapdp.verify.report import FAILED, NOT_CHECKED, NOT_COMPARED, ArgumentsError, Check, CheckError, Compared, Report
from pmapdp.verify.rounding import Update, narrowest_sum, reference_updates
from pmapdp.verify.trees import few
from pmapdp.verify.trial import Trial, user_code

COUNTS = (1, 2, 4, 8)


def verify(
    *,
    reference: Callable,
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
    counts: Sequence[int] | None = None,
    updates: int = 3,
    float64: bool = True,
) -> Report:
    """Compare a training step on several devices with its reference on one, update by update and leaf by leaf.

    Both are called as `step(state, batch, key)`, without what you leave out, and return the new state or
    `(state, metrics)`. docs/verify.md has a function of three lines for steps of another form.

    Args:
        reference: the plain step for one device, without collectives, or `one_device(step, axis_name)`, or
            `old_program(step, axis_name, groups)`.
        state: what the training starts from, as for one device. Leaves that `per_device` names are `[N, ...]`.
        batch: pytree of `[B, ...]`, as for one device; or a function of the update's number, from 0, that returns one.
            None: the step takes no batch. B should be a multiple of every number of devices.
        step: the same function as `reference`, pmapped, shard_mapped or jitted. It is run on all `devices`.
        make_step: a function of the devices that returns the step, in place of `step`: it is run on 1, 2, 4 and 8.
        key: what your loop passes: a key, the same in every update, or a function of the update's number. None: no key.
        layout: how the step wants its arguments: `stacked`, `replicated` or `sharded`, a sharding of the batch on your
            own mesh, or a `Layout`.
        per_device: names of the leaves of which each device has its own: parts of their paths, as "batch_stats" or
            "opt/key"; "key" and "batch" are those arguments, "metrics/loss" is a metric. They are compared if the
            reference has them for every device, too, as `old_program` does.
        batch_axis: of the examples in the batch: 1 for `[n_steps, B, ...]`.
        last_batch: a ragged or padded last batch, as the reference takes it, for one more update.
        devices: those to use; None: all of this process.
        counts: numbers of devices, for a `step` that takes any number (a pmap without `devices`) or for `make_step`.
        updates: how many in a row.
        float64: compute in float64 if the program allows it; False: in the types that are given.

    Returns:
        The report. An error that the step raises is a check that failed; one of the reference is raised.

    Raises:
        ArgumentsError: arguments that cannot be used, in one sentence; it is a ValueError.
    """
    started = time.perf_counter()
    per_device = [per_device] if isinstance(per_device, str) else per_device
    devices = jax.devices() if devices is None else devices
    layout = choose_layout(layout, batch_axis)
    groups = reference.groups if isinstance(reference, Grouped) and reference.groups > 1 else 0
    if counts is None:
        several = [N for N in COUNTS if len(devices) >= N]
        counts = [groups] if groups else [len(devices)] if make_step is None else several
    if not counts or not set(counts) <= set(range(1, len(devices) + 1)):
        raise ArgumentsError(f"counts={shown(counts)}: give a list of numbers from 1 to {len(devices)}, as [1]")
    if (step is None) == (make_step is None):
        raise ArgumentsError("verify takes either step, for all devices, or make_step, a function of the devices")
    batches = [batch(update) if callable(batch) else batch for update in range(updates)]
    batches += [] if last_batch is None else [last_batch]
    keys = [() if key is None else (key(update) if callable(key) else key,) for update in range(len(batches))]
    state = jax.tree.map(lambda x: x if hasattr(x, "dtype") else np.asarray(x, jnp.result_type(x)), state)
    plain = Reference(reference, state, per_device, batch_axis)

    def run(dtype: Any) -> tuple[list[Check], list[Update], dict[int, list[Case]], np.dtype]:
        """Make all checks in one precision; none if the reference does not keep it."""
        host_state, host_batches = trees.to_host((state, batches), dtype)
        first = (host_state, host_batches[0], *keys[0])
        plain.check(first)
        narrowest, runs, failed = narrowest_sum(plain, first), {}, []  # type: tuple[np.dtype, dict, list[Check]]
        if dtype and narrowest != dtype:
            return failed, [], runs, narrowest
        with jax.transfer_guard("allow"):  # programs are given arrays of the host
            plain.require_equal_groups(first)
            made = reference_updates(plain, host_state, host_batches, keys, narrowest)
            for N in sorted(counts):
                try:
                    with user_code("make_step"):
                        own: Any = make_step(devices[:N]) if make_step else step
                    runs[N] = run_updates(Trial(own, plain, layout, devices[:N]), made)
                except CheckError as why:
                    failed.append(Check("runs", why.status, (N,), str(why), why.cause))
            return failed + (all_checks(runs) if runs else []), made, runs, narrowest

    checks, why_not = [], "" if float64 else "as asked"  # type: tuple[list[Check], str]
    if float64:
        try:
            with jax.enable_x64(True):
                checks, made, runs, narrowest = run(np.float64)
            why_not = "" if checks else f"given float64, the reference computes in {narrowest}"
        except ArgumentsError:
            raise
        except Exception as error:
            why_not = f"with float64 the reference raises {type(error).__name__}"
        if any(check.name == "runs" and check.status == FAILED for check in checks):
            why_not = "the step raises an error with float64"
    if why_not:
        checks, made, runs, narrowest = run(None)
    if all(check.status == NOT_CHECKED for check in checks):
        raise ArgumentsError(f"nothing can be checked: {checks[0].sentence}")
    notes = []
    if why_not and float64 and runs:
        notes.append(f"Note: in float64 tolerances would be a thousand times narrower, but {why_not}.")
    if groups and step is not None and inspect.unwrap(step) is inspect.unwrap(reference.step):  # type: ignore[attr-defined]
        notes.append(
            "Note: step and reference are one function, so only the change to several devices is compared, and not "
            "what the function does: reference=one_device(step, axis_name) sees more."
        )
    if last_batch is None and batch is not None:
        checks.append(Check("last batch", NOT_CHECKED, (), "give last_batch, if yours is uneven or padded"))
    if make_step is None and len(counts) == 1:
        checks.append(Check("other numbers of devices", NOT_CHECKED, (), "give make_step, or counts"))
    compared = summarize(made, runs)
    precision = f"the given types, not float64 ({why_not})" if why_not else "float64"
    return Report(checks + find_gaps(compared, made), compared, precision, time.perf_counter() - started, tuple(notes))


def run_updates(trial: Trial, updates: list[Update]) -> list[Case]:
    """Make the reference's updates by the step, each from the reference's state."""
    cases: list[Case] = []
    for update in updates:
        try:
            cases.append(Case(trial, update))
        except CheckError as why:  # a ragged last batch may not divide: the others are compared all the same
            if why.status == FAILED or not cases:
                raise
    return cases


def summarize(updates: list[Update], runs: dict[int, list[Case]]) -> Compared:
    """Say what was compared of the leaves, in which updates and on how many devices."""
    kinds: dict[str, set[str]] = {}
    for update in updates:
        for name, most in update.allowed.items():
            kinds.setdefault(name, set()).add(most.kind)
    leaves = {
        kind: tuple(name for name, seen in kinds.items() if kind in seen and (kind == "blind" or "blind" not in seen))
        for kind in ("close", "exact", "blind", "ignored")
    }
    on = {u.number + 1: tuple(N for N, cases in runs.items() if any(c.update is u for c in cases)) for u in updates}
    return Compared(leaves["close"], leaves["exact"], leaves["blind"], leaves["ignored"], on)


def find_gaps(found: Compared, updates: list[Update]) -> list[Check]:
    """Say what was not compared, so that nothing is proven of it."""
    gaps = {}
    lacking = [number for number, on in found.updates.items() if not any(N > 1 for N in on)]
    if len(lacking) == len(updates):
        why = "no update was compared on more than one device; JAX_PLATFORMS=cpu lets pmapdp simulate eight"
        gaps["several devices"] = why
    elif lacking:
        gaps["several devices"] = (
            f"update {lacking[0]} was compared on no more than one device, because its "
            f"{updates[lacking[0] - 1].examples} examples do not divide: give a Layout whose place_batch pads as your "
            "loop does"
        )
    if found.blind:
        gaps["every leaf"] = (
            f"rounding changes {few(found.blind)} by more than 30 % of their update. Give a state and data with larger "
            f"updates, or accept it: report.require(not_compared={list(found.blind)[:3]})"
        )
    elif not found.leaves:
        gaps["every leaf"] = "no leaf holds floating-point numbers"
    return [Check(name, NOT_COMPARED, (), why) for name, why in gaps.items()]
