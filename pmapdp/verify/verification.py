"""The function that users call: which devices, which precision, which checks."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pmapdp.verify import trees
from pmapdp.verify.layouts import Layout, as_layout
from pmapdp.verify.report import FAILED, NOT_CHECKED, Check, Report
from pmapdp.verify.rounding import computes_in_float64
from pmapdp.verify.runs import Trial
from pmapdp.verify.suite import Program, run_checks

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
        batch: pytree of `[B, ...]`, as for one device, the same in every update; or a function of the update's number
            (from 0) that returns one. B should be a multiple of every number of devices.
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
    batches = [batch(update) if callable(batch) else batch for update in range(updates)]
    trees.number_of_examples(batches[0])
    key_of = key if callable(key) else (lambda update: key)
    maker: Any = make_step or functools.partial(lambda step, devices: step, step)
    plain = Trial(compiled(reference), compiled(reference), as_layout(layout), devices)
    program = Program(maker, plain, key_of, sorted(counts))

    why_not = "as asked" if float64 is False else None
    if why_not is None:
        with jax.enable_x64(True):
            wide = trees.to_host((state, batches, last_batch), jax.numpy.float64)
            why_not = computes_in_float64(reference, wide[0], wide[1][0], key_of(0))
            if why_not is None:
                found = run_checks(program, *wide)
                raised = any(check.name == "runs" and check.status == FAILED for check in found)
                why_not = "the step raises an error with float64" if raised and float64 is None else None
    if why_not is not None:
        if float64:
            raise ValueError(f"float64=True cannot be had: {why_not}; leave it out")
        found = run_checks(program, *trees.to_host((state, batches, last_batch)))
    if make_step is None and len(counts) == 1:
        other = "a step is made for one number; give make_step, or counts where the step takes any number"
        found.append(Check("other numbers of devices", NOT_CHECKED, (), other))
    precision = "float64" if why_not is None else f"the given precision, not float64 ({why_not})"
    return Report(found, precision, time.perf_counter() - started)


def compiled(reference: Callable) -> Callable:
    """The reference, jitted unless it is already."""
    if hasattr(reference, "lower"):
        return reference
    return jax.jit(reference)
