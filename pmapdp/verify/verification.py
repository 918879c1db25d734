"""The function that users call: its arguments, the precision, and the checks one after the other."""

import time
import types
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
STATE = "arrays as one device has them, for example flax.nnx.state(model), or equinox.filter(model, equinox.is_array)"
BATCH = "arrays that start with the same axis of examples, [B, ...], for example {'x': inputs, 'y': labels}"
KEY = "jax.random.key(0), or a function of the update's number that returns a key"


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
        batch: pytree of `[B, ...]`, as for one device, the same in every update; or a function of the update's number
            (from 0) that returns one. None: the step takes no batch. B should be a multiple of every number of devices.
        step: the same function as `reference`, pmapped, shard_mapped or jitted. It is run on all `devices`.
        make_step: a function of the devices that returns the step, in place of `step`: it is run on 1, 2, 4 and 8.
        key: what your loop passes: a key, the same in every update; or a function of the update's number (from 0) that
            returns one. None: the functions take no key.
        layout: how the step wants its arguments. `stacked`: a device axis `[N, ...]` on all, as of
            `flax.jax_utils.replicate`, the batch `[N, b, ...]`; `replicated`: only the batch has that axis
            (`pmap(in_axes=(None, 0, None))`); `sharded`: neither (jit, shard_map). Or the sharding of
            the batch on your own mesh, as of `jax.make_mesh`, with the state replicated; or a `Layout`.
        per_device: names of the leaves of which each device has its own, given as `[N, ...]`: parts of their paths, as
            "batch_stats" or "opt/key"; "key" and "batch" are those arguments, "metrics/loss" is a metric. They are
            compared if the reference has them for every device, too, as `old_program` does.
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
    check_functions(reference, step, make_step)
    if not counts or not set(counts) <= set(range(1, len(devices) + 1)):
        raise ArgumentsError(f"counts={shown(counts)}: give a list of numbers from 1 to {len(devices)}, as [1]")
    if not trees.has_arrays_alone(state):
        raise ArgumentsError(f"state={shown(state)} does not hold arrays alone: give {STATE}")
    batches = [batch(update) if callable(batch) else batch for update in range(updates)]
    batches += [] if last_batch is None else [last_batch]
    for each in batches if batch is not None or last_batch is not None else ():
        check_batch(each, 0 if trees.matches("batch", per_device) else batch_axis)
    keys = [() if key is None else (key(update) if callable(key) else key,) for update in range(len(batches))]
    if not all(map(trees.is_random, jax.tree.leaves(keys))):
        raise ArgumentsError(f"key={shown(key)} holds no key: give {KEY}")
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
                    runs[N] = step_updates(Trial(own, plain, layout, devices[:N]), made)
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
    if isinstance(reference, Grouped) and groups and is_function_of(step, reference.step):
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
    return Report(checks + gaps(compared, made), compared, precision, time.perf_counter() - started, tuple(notes))


def is_function_of(step: Any, function: Callable) -> bool:
    """Tell if a step is this function, mapped or compiled."""
    while step is not None and step is not function:
        step = getattr(step, "__wrapped__", None)
    return step is not None


def check_functions(reference: Any, step: Any, make_step: Any) -> None:
    """Refuse functions that cannot be called, and a reference that is mapped over devices."""
    if (step is None) == (make_step is None):
        raise ArgumentsError("verify takes either step, for all devices, or make_step, a function of the devices")
    for name, function in (("reference", reference), ("step", step), ("make_step", make_step)):
        if (function is not None or name == "reference") and not callable(function):
            raise ArgumentsError(f"{name}={shown(function)} cannot be called: give a function")
    plain = reference.step if isinstance(reference, Grouped) else reference
    if isinstance(plain, types.FunctionType) and hasattr(plain, "lower"):  # pmap returns one; jit returns its own type
        raise ArgumentsError("the reference is mapped over devices by pmap: give the function in it, step.__wrapped__")


def check_batch(batch: Any, axis: int) -> None:
    """Refuse a batch that is no pytree of arrays with one axis of examples in common, and at least one example."""
    if not trees.has_arrays_alone(batch):
        raise ArgumentsError(f"the batch {shown(batch)} does not hold arrays alone: give {BATCH}")
    shapes = {leaf: np.shape(value) for leaf, value in trees.named(batch).items()}
    sizes = {shape[axis : axis + 1] for shape in shapes.values()}
    if len(sizes) > 1 or sizes & {(), (0,)}:
        found = few(f"{leaf} {list(shape)}" for leaf, shape in shapes.items())
        where = f"arrays whose axis {axis} is that of the examples, as batch_axis={axis} says" if axis else BATCH
        raise ArgumentsError(f"the batch holds {found}: give {where}")


def step_updates(trial: Trial, updates: list[Update]) -> list[Case]:
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
    share: dict[str, float] = {}  # tolerance as a fraction of the change
    for update in updates:
        for name, most in update.allowed.items():
            kinds.setdefault(name, set()).add(most.kind)
            share[name] = max(share.get(name, 0.0), most.tolerance / most.change if most.change else 0.0)
    found = {
        kind: tuple(name for name, of in kinds.items() if kind in of and (kind == "blind" or "blind" not in of))
        for kind in ("close", "exact", "blind", "ignored")
    }
    on = {u.number + 1: tuple(N for N, cases in runs.items() if any(c.update is u for c in cases)) for u in updates}
    worst = max(found["close"], key=lambda name: share[name], default="")
    loosest = (worst, share.get(worst, 0.0))
    return Compared(found["close"], found["exact"], found["blind"], found["ignored"], on, loosest)


def gaps(found: Compared, updates: list[Update]) -> list[Check]:
    """Say what was not compared, so that nothing is proven of it."""
    checks = []
    lacking = [number for number, on in found.updates.items() if not any(N > 1 for N in on)]
    if lacking:
        B = updates[lacking[0] - 1].examples
        why = "no update was compared on more than one device; JAX_PLATFORMS=cpu lets pmapdp simulate eight"
        if len(lacking) < len(updates):
            why = f"update {lacking[0]} was compared on no more than one device, because its {B} examples do not "
            why += "divide: give a Layout whose place_batch pads as your loop does"
        checks.append(Check("several devices", NOT_COMPARED, (), why))
    if found.blind:
        why = (
            f"rounding changes {few(found.blind)} by more than 30 % of their update. Give a state and data with larger "
            f"updates, or accept it: report.require(not_compared={list(found.blind)[:3]})"
        )
        checks.append(Check("every leaf", NOT_COMPARED, (), why))
    elif not found.leaves:
        checks.append(Check("every leaf", NOT_COMPARED, (), "no leaf holds floating-point numbers"))
    return checks
