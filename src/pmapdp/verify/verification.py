"""The function that users call: with which devices, in which precision, and the checks one after the other."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from pmapdp.verify import trees
from pmapdp.verify.arguments import (
    KEY,
    STATE,
    is_array,
    refuse,
    require_batch,
    require_function,
    require_leaves,
    require_list,
)
from pmapdp.verify.case import Case, step_updates
from pmapdp.verify.checks import CHECKS, same_results
from pmapdp.verify.layouts import LAYOUTS, Layout, on_mesh
from pmapdp.verify.mistakes import Cause, named
from pmapdp.verify.report import FAILED, NOT_CHECKED, PASSED, ArgumentsError, Check, NotCheckedError, Report
from pmapdp.verify.rounding import coarsest_type, reference_updates
from pmapdp.verify.trial import Trial, blame, user_code

COUNTS = (1, 2, 4, 8)
# A mistake, and the causes that other checks then seem to find.
SEEMS_TO_BE = {
    "key stands still": ("unknown", "other random numbers"),
    "every device computes everything": ("transfer",),  # what replicates the batch may move it over the host
}


def verify(
    *,
    reference: Callable,
    state: Any,
    batch: Any,
    step: Callable | None = None,
    make_step: Callable[[Sequence[jax.Device]], Callable] | None = None,
    key: Any = None,
    layout: str | Layout | NamedSharding = "stacked",
    last_batch: Any = None,
    devices: Sequence[jax.Device] | None = None,
    counts: Sequence[int] | None = None,
    updates: int = 3,
    float64: bool = True,
) -> Report:
    """Compare a training step on several devices with its reference on one, update by update and leaf by leaf.

    Where something differs, `verify` computes what the reference would return if the step made a known mistake (each
    device alone, the mean over devices, another scale, an example left out), and names the mistake whose result is the
    step's. Differences that rounding explains are no mistakes: see `pmapdp.verify.rounding`. What it cannot see is in
    docs/verify.md.

    Args:
        reference: `(state, batch, key) -> (state, metrics)` for one device, without collectives; any pytrees.
        state: what the training starts from, as for one device.
        batch: pytree of `[B, ...]`, as for one device, the same in every update; or a function of the update's number
            (from 0) that returns one. B should be a multiple of every number of devices.
        step: the same function as `reference`, pmapped, shard_mapped or jitted. It is run on all `devices`.
        make_step: a function of the devices that returns the step, in place of `step`: it is run on 1, 2, 4 and 8.
        key: what your loop passes: a key, the same in every update; or a function of the update's number (from 0) that
            returns one. None: both functions take `(state, batch)`.
        layout: how the step wants its arguments. `stacked`: a device axis `[N, ...]` on all, as of
            `flax.jax_utils.replicate`, the batch `[N, b, ...]`; `replicated`: only the batch has that axis
            (`pmap(in_axes=(None, 0, None))`); `sharded`: neither (jit, shard_map). Or the sharding of
            the batch on your own mesh, as of `jax.make_mesh`, where the state is replicated; or a `Layout`.
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
    devices = jax.devices() if devices is None else devices
    if isinstance(layout, NamedSharding):
        layout = on_mesh(layout)
    layout = LAYOUTS.get(layout, layout) if isinstance(layout, str) else layout
    if not isinstance(layout, Layout):
        raise ArgumentsError(
            f"unknown layout {layout!r}: choose from {', '.join(LAYOUTS)}, or give the NamedSharding of the batch"
        )
    if (step is None) == (make_step is None):
        raise ArgumentsError("verify takes either step, for all devices, or make_step, a function of the devices")
    example = "a list of devices, for example jax.devices()[:4]"
    require_list("devices", devices, lambda device: isinstance(device, jax.Device), example)
    if counts is None:
        counts = [len(devices)] if make_step is None else [N for N in COUNTS if len(devices) >= N]
    possible = range(1, len(devices) + 1)
    example = f"a list of numbers from 1 to {len(devices)}, for example [1]"
    require_list("counts", counts, lambda N: isinstance(N, int) and N in possible, example)
    if not isinstance(updates, int) or updates < 1:
        raise refuse("updates", updates, ": give a whole number of 1 or more, for example 3")
    require_leaves("state", state, is_array, "arrays", STATE)
    batches = [batch(update) if callable(batch) else batch for update in range(updates)]
    for each in batches:
        require_batch("batch", each)
    if last_batch is not None:
        require_batch("last_batch", last_batch)
        batches.append(last_batch)
    keys = [() if key is None else (key(n) if callable(key) else key,) for n in range(len(batches))]
    for each in (each for given in keys for each in given):
        require_leaves("key", each, trees.is_random, "key", KEY)
    require_function("reference", reference, (state, batches[0], *keys[0]))
    if make_step is None:
        require_function("step", step, (state, batches[0], *keys[0]))
    elif not callable(make_step):
        raise refuse("make_step", make_step, " cannot be called: give a function of the devices that returns the step")
    reference = reference if hasattr(reference, "lower") else jax.jit(reference)

    def trial(N: int) -> Trial:
        with user_code("make_step", N):
            made: Any = make_step(devices[:N]) if make_step else step
        if not callable(made):
            raise refuse("make_step(devices)", made, " cannot be called: return a function of (state, batch, key)")
        return Trial(made, reference, layout, devices[:N])

    def run(dtype: Any = None) -> list[Check]:
        host_state, host_batches = trees.to_host((state, batches), dtype)
        with jax.transfer_guard("allow"):  # programs are given arrays of the host
            return run_checks(reference, trial, sorted(counts), host_state, host_batches, keys)

    found, why_not = [], "as asked"
    if float64:
        with jax.enable_x64(True):
            why_not = why_not_float64(reference, (*trees.to_host((state, batches[0]), np.float64), *keys[0]))
            if not why_not:
                found = run(np.float64)
                if any(check.name == "runs" and check.status == FAILED for check in found):
                    why_not = "the step raises an error with float64"
    if why_not:
        found = run()
    if all(check.status == NOT_CHECKED for check in found):
        raise ArgumentsError(f"nothing can be checked: {found[0].sentence}")
    if last_batch is None:
        found.append(Check("last batch", NOT_CHECKED, (), "give last_batch, if yours is uneven or padded"))
    if make_step is None and len(counts) == 1:
        other = "a step is made for one number; give make_step, or counts where the step takes any number"
        found.append(Check("other numbers of devices", NOT_CHECKED, (), other))
    precision = f"the given precision, not float64 ({why_not})" if why_not else "float64"
    return Report(found, precision, time.perf_counter() - started)


def why_not_float64(reference: Callable, arguments: tuple) -> str:
    """Why the reference does not keep float64, given float64; empty where it does."""
    try:
        coarsest = coarsest_type(reference, arguments)
    except Exception as error:
        return f"with float64 it raises {type(error).__name__}"
    return "" if coarsest == np.float64 else f"given float64, it computes in {coarsest}"


def run_checks(
    reference: Callable, trial: Callable[[int], Trial], counts: list[int], state: Any, batches: list, keys: list
) -> list[Check]:
    """All checks in one precision, on each number of devices on which the step can be run."""
    updates = reference_updates(reference, state, batches, keys)
    runs: dict[int, list[Case]] = {}
    found: list[Check] = []
    for N in counts:
        try:
            runs[N] = step_updates(trial(N), updates)
        except NotCheckedError as why:
            found.append(Check("runs", FAILED if why.cause else NOT_CHECKED, (N,), str(why), why.cause))
    if not runs:
        return found
    found += same_results(runs, "state", "same update") + same_results(runs, "metrics", "same metrics")
    found += [checked(name, look, runs[max(runs)]) for name, look in CHECKS.items()]
    causes = {check.cause for check in found}
    following = {cause for causing in causes for cause in SEEMS_TO_BE.get(causing, ())}
    cause, text = named("follows")
    return [check._replace(cause=cause, sentence=text) if check.cause in following else check for check in found]


def checked(name: str, look: Callable[[list[Case]], Cause | None], cases: list[Case]) -> Check:
    """The check that `look` makes."""
    devices = (cases[0].trial.N,)
    try:
        found = look(cases)
    except NotCheckedError as why:
        return Check(name, NOT_CHECKED, devices, str(why))
    except Exception as error:  # whatever a step does that cannot be traced: it may be right all the same
        return Check(name, NOT_CHECKED, devices, f"the step cannot be called or traced for it, {blame(error)}")
    return Check(name, FAILED, devices, found[1], found[0]) if found else Check(name, PASSED, devices)
