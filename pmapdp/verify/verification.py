"""The function that users call: with which devices, in which precision, and the checks one after the other."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from pmapdp.errors import shown
from pmapdp.verify import trees
from pmapdp.verify.arguments import refuse, require_batch, require_key, require_list, require_names, require_state
from pmapdp.verify.case import Case, step_updates
from pmapdp.verify.checks import other_checks, reference_advances, same_results
from pmapdp.verify.compared import compared, gaps
from pmapdp.verify.layouts import LAYOUTS, Layout, on_mesh
from pmapdp.verify.mistakes import named
from pmapdp.verify.plain_step import PlainStep
from pmapdp.verify.reference_program import Reference
from pmapdp.verify.references import Grouped
from pmapdp.verify.report import FAILED, NOT_CHECKED, ArgumentsError, Check, Compared, NotCheckedError, Report
from pmapdp.verify.rounding import Update, reference_updates
from pmapdp.verify.trial import Trial, user_code

COUNTS = (1, 2, 4, 8)
MOST = 1000  # updates, or axes
# A mistake, and the causes that other checks then seem to find.
SEEMS_TO_BE = {
    "key stands still": ("unknown", "other random numbers"),
    "local statistics": ("mean of means",),  # of a loss that is normalised with them
    "same mask": ("mean of means",),
    "other random numbers": ("mean of means",),
    "every device computes everything": ("transfer",),  # what replicates the batch may move it over the host
}


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

    Where something differs, `verify` computes what the reference would return if the step made a known mistake (each
    device alone, the mean over devices, another gradient, an example left out), and names the mistake that explains the
    difference. How rounding is told from mistakes is in `pmapdp.verify.rounding`; what it cannot see in docs/verify.md.

    Args:
        reference: the plain step for one device, without collectives, or `one_device(step, axis_name)`, or
            `old_program(step, axis_name, groups)`. It takes state, batch and key in any order, a state that is a tuple
            also as several arguments, and returns the new state, perhaps with metrics and a new key.
        state: what the training starts from, as for one device. Leaves that `per_device` names are `[N, ...]`.
        batch: pytree of `[B, ...]`, as for one device, the same in every update; or a function of the update's number
            (from 0) that returns one. None: the step takes no batch. B should be a multiple of every number of devices.
        step: the same function as `reference`, pmapped, shard_mapped or jitted. It is run on all `devices`.
        make_step: a function of the devices that returns the step, in place of `step`: it is run on 1, 2, 4 and 8.
        key: what your loop passes: a key, the same in every update; or a function of the update's number (from 0) that
            returns one. Of a step that returns a new key it is the first. None: the functions take no key.
        layout: how the step wants its arguments. `stacked`: a device axis `[N, ...]` on all, as of
            `flax.jax_utils.replicate`, the batch `[N, b, ...]`; `replicated`: only the batch has that axis
            (`pmap(in_axes=(None, 0, None))`); `sharded`: neither (jit, shard_map). Or the sharding of
            the batch on your own mesh, as of `jax.make_mesh`, where the state is replicated; or a `Layout`.
        per_device: names of the leaves of which each device has its own, given as `[N, ...]`: parts of their paths, as
            "batch_stats" or "opt/key"; "key" and "batch" are those arguments. They are compared where the reference has
            them for every device, too, as `old_program` does.
        batch_axis: of the examples in the batch: 1 for `[n_steps, B, ...]`.
        last_batch: a ragged or padded last batch, as the reference takes it, for one more update.
        devices: those to use; all of this process where None.
        counts: numbers of devices, for a `step` that takes any number (a pmap without `devices`) or for `make_step`.
        updates: how many in a row; three or more show whether the step is compiled again.
        float64: compute in float64 where the program allows it; False: in the types that are given.

    Returns:
        The report. An error that the step raises is a check that failed; one of the reference is raised.

    Raises:
        ArgumentsError: arguments that cannot be used, in one sentence; it is a ValueError.
    """
    started = time.perf_counter()
    own_names = [per_device] if isinstance(per_device, str) else per_device
    require_list("per_device", own_names, lambda name: isinstance(name, str), "names of leaves, as ['key']", empty=True)
    devices = jax.devices() if devices is None else devices
    if (step is None) == (make_step is None):
        raise ArgumentsError("verify takes either step, for all devices, or make_step, a function of the devices")
    for name, function in (("reference", reference), ("step", step), ("make_step", make_step)):
        if (function is not None and not callable(function)) or (name == "reference" and function is None):
            returns = " of the devices that returns the step" if name == "make_step" else " of (state, batch, key)"
            raise refuse(name, function, f" cannot be called: give a function{returns}")
    example = "a list of devices, for example jax.devices()[:4]"
    require_list("devices", devices, lambda device: isinstance(device, jax.Device), example)
    if counts is None:
        groups = reference.groups if isinstance(reference, Grouped) and reference.groups > 1 else 0
        counts = (
            [groups] if groups else [len(devices)] if make_step is None else [N for N in COUNTS if len(devices) >= N]
        )
    possible = range(1, len(devices) + 1)
    example = f"a list of numbers from 1 to {len(devices)}, for example [1]"
    require_list("counts", counts, lambda N: isinstance(N, int) and N in possible, example)
    for name, number, least, works in (("updates", updates, 1, 3), ("batch_axis", batch_axis, 0, 0)):
        if type(number) is not int or not least <= number <= MOST:
            raise refuse(name, number, f": give a whole number from {least} to {MOST}, for example {works}")
    if not isinstance(float64, bool):
        raise refuse("float64", float64, ": give True or False")
    layout = chosen_layout(layout, batch_axis)
    require_state(state)
    batches = [batch(update) if callable(batch) else batch for update in range(updates)]
    if last_batch is not None:
        batches.append(last_batch)
    for name, each in zip(["batch"] * updates + ["last_batch"], batches, strict=False):
        if each is not None or callable(batch) or name == "last_batch":
            require_batch(name, each, batch_axis, trees.matches("batch", own_names))
    keys = [() if key is None else (key(n) if callable(key) else key,) for n in range(len(batches))]
    for each in (each for given in keys for each in given):
        require_key(each)
    state = trees.as_arrays(state)
    user = PlainStep(reference, state, own_names, batch_axis)
    convention = user.convention(batches[0], keys[0])
    require_names(own_names, user.leaf_names(convention, batches[0], keys[0]))

    own = functools.partial(trees.matches, names=own_names)

    def trial(N: int, plain: Reference) -> Trial:
        with user_code("make_step", N):
            made: Any = make_step(devices[:N]) if make_step else step
        if not callable(made):
            raise refuse("make_step(devices)", made, " cannot be called: return a function of (state, batch, key)")
        return Trial(made, plain, convention, layout, devices[:N], own)

    def run(dtype: Any = None) -> tuple[list[Check], Compared]:
        host_state, host_batches = trees.to_host((trees.arrays(state), batches), dtype)
        plain = user.reference(convention)
        with jax.transfer_guard("allow"):  # programs are given arrays of the host
            user.require_equal_groups(convention, host_state, host_batches[0], keys[0])
            made = reference_updates(plain, host_state, host_batches, keys, batch_axis, user.ignored)
            return run_checks(made, lambda N: trial(N, plain), sorted(counts), user.ignored)

    found: list[Check] = []
    summary, why_not = Compared(), "as asked"
    if float64:
        with jax.enable_x64(True):
            first = trees.to_host((trees.arrays(state), batches[0]), np.float64)
            why_not = why_not_float64(user.reference(convention), (*first, *keys[0]))
            if not why_not:
                found, summary = run(np.float64)
                if any(check.name == "runs" and check.status == FAILED for check in found):
                    why_not = "the step raises an error with float64"
    if why_not:
        found, summary = run()
    if all(check.status == NOT_CHECKED for check in found):
        raise ArgumentsError(f"nothing can be checked: {found[0].sentence}")
    if last_batch is None and batch is not None:
        found.append(Check("last batch", NOT_CHECKED, (), "give last_batch, if yours is uneven or padded"))
    if make_step is None and len(counts) == 1:
        other = "a step is made for one number; give make_step, or counts where the step takes any number"
        found.append(Check("other numbers of devices", NOT_CHECKED, (), other))
    found += gaps(summary, counts)
    precision = f"the given precision, not float64 ({why_not})" if why_not else "float64"
    return Report(found, summary, precision, time.perf_counter() - started)


def chosen_layout(layout: Any, batch_axis: int) -> Layout:
    """The layout that was named or given."""
    if isinstance(layout, NamedSharding):
        return on_mesh(layout)
    if isinstance(layout, str) and layout in LAYOUTS:
        found = LAYOUTS[layout]
        return (
            found._replace(place_batch=functools.partial(found.place_batch, axis=batch_axis)) if batch_axis else found
        )
    if not isinstance(layout, Layout):
        raise ArgumentsError(
            f"unknown layout {shown(layout)}: choose from {', '.join(LAYOUTS)}, or give the NamedSharding of the batch"
        )
    return layout


def why_not_float64(reference: Reference, arguments: tuple) -> str:
    """Why the reference does not keep float64, given float64; empty where it does."""
    try:
        coarsest = reference.coarsest_type(arguments)
    except Exception as error:
        return f"with float64 it raises {type(error).__name__}"
    return "" if coarsest == np.float64 else f"given float64, it computes in {coarsest}"


def run_checks(
    updates: list[Update], trial: Callable[[int], Trial], counts: list[int], ignored: Callable[[str], bool]
) -> tuple[list[Check], Compared]:
    """All checks in one precision, on each number of devices on which the step can be run."""
    runs: dict[int, list[Case]] = {}
    failures: dict[tuple[str, str, str], list[int]] = {}
    for N in counts:
        try:
            runs[N] = step_updates(trial(N), updates)
        except NotCheckedError as why:
            status = FAILED if why.cause else NOT_CHECKED
            failures.setdefault((status, str(why), why.cause), []).append(N)
    found = [Check("runs", status, tuple(N), why, cause) for (status, why, cause), N in failures.items()]
    summary = compared(updates, runs, ignored)
    if not runs:
        return found, summary
    found += same_results(runs, "state", "same update") + same_results(runs, "metrics", "same metrics")
    found += other_checks(runs[max(runs)])
    causes = {check.cause for check in found}
    if "key stands still" in causes and not reference_advances(runs[max(runs)]):  # nothing follows from it
        causes.remove("key stands still")
    following = {cause for causing in causes for cause in SEEMS_TO_BE.get(causing, ())}
    cause, text = named("follows")
    return [c._replace(cause=cause, sentence=text) if c.cause in following else c for c in found], summary
