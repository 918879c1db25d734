"""What was compared, and what was not: nothing is proven of what no number of devices above one was compared in."""

from collections.abc import Callable, Sequence

import jax

from pmapdp.verify.case import Case
from pmapdp.verify.report import NOT_COMPARED, Check, Compared, shares
from pmapdp.verify.rounding import Update


def compared(updates: list[Update], runs: dict[int, list[Case]], ignored: Callable[[str], bool]) -> Compared:
    """What was compared of the leaves, in which updates and on how many devices."""
    kinds: dict[str, set[str]] = {}
    share: dict[str, float] = {}
    for update in updates:
        for part, leaves in update.allowed.items():
            for name, most in leaves.items():
                full = name if part == "state" else f"metrics/{name}"
                kinds.setdefault(full, set()).add("per device" if ignored(name) else most.kind)
                if most.kind in ("close", "loose", "blind") and most.change:
                    share[full] = max(share.get(full, 0.0), most.tolerance / most.change)

    def of(kind: str, besides: Sequence[str] = ()) -> list[str]:
        return [name for name, found in kinds.items() if kind in found and not found & set(besides)]

    close = [name for name in [*of("close"), *of("loose")] if "blind" not in kinds[name] and name in share]
    worst = max(close, key=lambda name: share[name], default="")
    return Compared(
        tuple(dict.fromkeys([*of("close", ["blind"]), *of("loose", ["blind"])])),
        tuple(of("exact", ["blind"])),
        tuple(of("still", ["blind"])),
        {name: share[name] for name in of("loose", ["blind"])},
        {name: share.get(name, float("inf")) for name in of("blind")},
        tuple(of("per device")),
        {
            number + 1: tuple(N for N, cases in runs.items() if any(case.number == number for case in cases))
            for number in range(len(updates))
        },
        tuple(update.examples for update in updates),
        (worst, share.get(worst, 0.0)),
    )


def gaps(found: Compared, counts: Sequence[int]) -> list[Check]:
    """What was not compared, so that nothing is proven of it."""
    checks, updates = [], found.updates or {}
    lacking = [number for number, on in updates.items() if not any(N > 1 for N in on)]
    if lacking:
        one = "" if len(jax.devices()) > 1 else "; there is one here, but JAX_PLATFORMS=cpu lets pmapdp simulate eight"
        why = f"no update was compared on more than one device{one}"
        if len(lacking) < len(updates):
            several = ", ".join(str(N) for N in counts if N > 1)
            why = (
                f"update {lacking[0]} was compared on no more than one device, because its "
                f"{found.examples[lacking[0] - 1]} examples do not divide over {several} devices: give a Layout whose "
                "place_batch pads as your loop does"
            )
        checks.append(Check("several devices", NOT_COMPARED, (), why))
    if found.blind:
        why = (
            f"rounding changes these leaves by more than 30 % of their update: {shares(found.blind)}. Give a state and "
            f"data with larger updates, or accept it: report.require(not_compared={list(found.blind)[:3]})"
        )
        checks.append(Check("every leaf", NOT_COMPARED, (), why))
    elif not found.leaves:
        checks.append(Check("every leaf", NOT_COMPARED, (), "no leaf holds floating-point numbers"))
    return checks
