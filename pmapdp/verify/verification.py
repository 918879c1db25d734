"""Read the arguments of `verify`, choose the precision, and make the checks one after the other."""

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
from pmapdp.verify.causes import (
    Case,
    explain_metrics,
    explain_state,
    find_fixed_key,
    find_unsplit_work,
    name_cause,
)
from pmapdp.verify.layouts import Layout, blame, choose_layout
from pmapdp.verify.reference import Reference, Update
from pmapdp.verify.report import ArgumentsError, Check, CheckError, Report
from pmapdp.verify.trees import few


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
    updates: int = 3,
    float64: bool = True,
) -> Report:
    """Compare a training step on several devices with its reference on one, update by update and leaf by leaf.

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

    Returns the report, in which an error of the step is a check that failed. An error
    of the reference is raised, and an `ArgumentsError`, which is a ValueError, says in
    one sentence why arguments cannot be used.
    """
    if (step is None) == (make_step is None):
        raise ArgumentsError(
            "verify takes either step, for all devices, or make_step, a function of the devices"
        )
    devices = jax.devices() if devices is None else devices
    batches = [batch(update) if callable(batch) else batch for update in range(updates)]
    batches += [] if last_batch is None else [last_batch]
    keys = [
        () if key is None else (key(update) if callable(key) else key,)
        for update in range(len(batches))
    ]
    state = jax.tree.map(
        lambda x: x if hasattr(x, "dtype") else np.asarray(x, jnp.result_type(x)), state
    )
    per_device = [per_device] if isinstance(per_device, str) else per_device
    plain, chosen_layout = (
        Reference(reference, state, per_device, batch_axis),
        choose_layout(layout, batch_axis),
    )
    counts = (
        [plain.groups or len(devices)]
        if plain.groups or step
        else [N for N in (1, 2, 4, 8) if len(devices) >= N]
    )

    def check_in(dtype: Any) -> tuple[list[Check], list[Update], dict[int, list[Case]]]:
        """Make the updates and all checks in float64 (a CheckError says why not), or in the given types."""
        host_state, host_batches = trees.to_host((state, batches), dtype)
        first, checks, runs = (
            (host_state, host_batches[0], *keys[0]),
            list[Check](),
            dict[int, list[Case]](),
        )
        narrowest = plain.check(first)
        if dtype and narrowest != dtype:
            raise CheckError(f"given float64, the reference computes in {narrowest}")
        made = plain.make_updates(host_state, host_batches, keys, narrowest)
        for N in counts:
            cases = list[Case]()
            try:
                own: Any = make_step(devices[:N]) if make_step else step
                for update in made:  # each from the reference's state
                    cases.append(Case(own, plain, chosen_layout, devices[:N], update))
            except Exception as error:
                status = error.status if isinstance(error, CheckError) else "FAILED"
                if dtype and status == "FAILED":
                    raise CheckError("the step raises an error with float64") from error
                if (
                    status == "FAILED" or not cases
                ):  # a ragged last batch may not divide: the others are compared
                    checks.append(
                        Check(
                            "runs",
                            status,
                            (N,),
                            blame(error),
                            "error" * (status == "FAILED"),
                        )
                    )
                    continue
            runs[N] = cases
        return checks + make_checks(runs), made, runs

    with jax.transfer_guard("allow"):  # programs are given arrays of the host
        why_not = "" if float64 else "as asked"
        if float64:
            try:
                with jax.enable_x64(True):
                    checks, made, runs = check_in(np.float64)
            except ArgumentsError:
                raise
            except Exception as error:
                raised = f"the reference raises {type(error).__name__}"
                why_not = str(error) if isinstance(error, CheckError) else raised
        if why_not:
            checks, made, runs = check_in(None)
    if last_batch is None and batch is not None:
        checks.append(
            Check(
                "last batch",
                "not checked",
                (),
                "give last_batch, if yours is uneven or padded",
            )
        )
    if make_step is None:
        checks.append(
            Check("other numbers of devices", "not checked", (), "give make_step")
        )
    # A leaf that rounding hides in one update is not compared.
    kinds = {
        n: "blind" if any(u.kinds[n] == "blind" for u in made) else kind
        for n, kind in made[0].kinds.items()
    }
    on = {
        u.number + 1: tuple(N for N, cases in runs.items() if u.number < len(cases))
        for u in made
    }
    checks += find_gaps(kinds, on, made)
    return Report(
        checks,
        kinds,
        on,
        f"the given types, not float64 ({why_not})" if why_not else "float64",
    )


def make_checks(runs: dict[int, list[Case]]) -> list[Check]:
    """Compare the results on every number of devices, and make the other checks on the largest."""
    results, others = (
        [
            *check_results(runs, "same update", False),
            *check_results(runs, "same metrics", True),
        ],
        [],
    )
    looks = {
        "random numbers advance": find_fixed_key,
        "the work is split": find_unsplit_work,
    }
    for N, (name, look) in ((max(runs), item) for item in looks.items() if runs):
        try:
            cause, sentence = look(runs[N]) or ("", "")
            others.append(
                Check(name, "FAILED" if cause else "passed", (N,), sentence, cause)
            )
        except Exception as error:  # the step may be right all the same
            others.append(
                Check(name, getattr(error, "status", "not checked"), (N,), blame(error))
            )
    if any(
        check.cause for check in others
    ):  # then other differences look like mistakes that nobody made
        cause, sentence = name_cause("follows")
        results = [
            c._replace(cause=cause, sentence=sentence) if c.cause else c
            for c in results
        ]
    return results + others


def check_results(runs: dict[int, list[Case]], name: str, metrics: bool) -> list[Check]:
    """Check that the state or the metrics after every update equal the reference's, on every number of devices."""
    firsts = {
        N: first
        for N, cases in runs.items()
        if (first := next((c for c in cases if c.wrong(metrics)), None))
    }
    checks = []
    if right := [N for N in runs if N not in firsts]:
        leaves: dict[str, tuple[float, float]] = {}  # how far each is off at most
        for leaf, off in (
            found for N in right for case in runs[N] for found in case.off.items()
        ):
            if runs[right[0]][0].reference.is_metric(leaf) == metrics:
                leaves[leaf] = max(off, leaves.get(leaf, off))
        none = (
            ""
            if leaves
            else f"the step returns no {'metrics' if metrics else 'state'} that can be compared"
        )
        checks.append(
            Check(
                name,
                "not checked" if none else "passed",
                tuple(right),
                none,
                leaves=leaves,
            )
        )
    if firsts:
        N, case = max(firsts.items())  # more devices tell causes apart more surely
        B, wrong, update = (
            case.update.examples,
            case.wrong(metrics),
            case.update.number + 1,
        )
        facts = (
            f"Wrong: {len(wrong)} of {len(case.off)} leaves, from update {update} on"
        )
        facts += f", the only one with {B} examples" * (runs[N][0].update.examples != B)
        differ = any(map(case.differs_between_devices, wrong))
        facts += (
            f"; the devices hold {'different' if differ else 'the same'} values"
            * (N > 1)
            + "."
        )
        cause, sentence = (explain_metrics if metrics else explain_state)(case, facts)
        checks.append(
            Check(name, "FAILED", tuple(firsts), sentence, cause, wrong, update)
        )
    return checks


def find_gaps(
    kinds: dict[str, str], on: dict[int, tuple[int, ...]], updates: list[Update]
) -> list[Check]:
    """Say which leaves were not compared, and which updates on no more than one device."""
    lacking, gaps = (
        [u for u in updates if max(on[u.number + 1], default=0) < 2],
        list[Check](),
    )
    if lacking:
        why = f"update {lacking[0].number + 1} was compared on no more than one device. JAX_PLATFORMS=cpu lets pmapdp "
        why += f"simulate eight; if its {lacking[0].examples} examples do not divide, give a Layout that pads them"
        gaps.append(Check("several devices", "not compared", (), why))
    blind = [name for name in kinds if kinds[name] == "blind"]
    if blind or "close" not in kinds.values():
        why = f"rounding changes {few(blind)} by more than 30 % of their update. Give a state and data with larger "
        why += f"updates, or accept it: report.require(not_compared={blind[:3]})"
        gaps.append(
            Check(
                "every leaf",
                "not compared",
                (),
                why if blind else "no leaf holds floating-point numbers",
            )
        )
    return gaps


def verify_program(
    target: str, devices: Sequence[jax.Device]
) -> tuple[dict[str, Any], Report]:
    """Call `verify` with the arguments that FILE.py:FUNCTION returns. Return them, with defaults, and the report."""
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
