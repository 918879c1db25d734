"""The tables of the predictions, printed with rich."""

from collections.abc import Sequence

from rich.table import Table

from pmapdp.scaling.advice import GOAL, answers, least_batch
from pmapdp.scaling.hardware import HARDWARE
from pmapdp.scaling.predict import Plan, predict, weak_efficiency
from pmapdp.scaling.workloads import Workload


def seconds(value: float) -> str:
    """With a unit that leaves three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value * 1e6:.3g} \u00b5s"


def percent(share: float) -> str:
    """A share with one digit behind the point."""
    return f"{100 * share:.1f} %"


def predictions(name: str, counts: Sequence[int], workload: Workload, plan: Plan) -> Table:
    """A row for each number of devices, on the hardware of this name."""
    heads = "devices", "step", "compute", "update", "all-reduce", "waiting", "efficiency", "examples/s"
    hardware = HARDWARE[name]
    table = Table(*heads, title=f"{name}, predicted: {hardware.title}", title_justify="left")
    for N in counts:
        found = predict(workload, hardware, N, plan)
        table.add_row(
            f"{N:,}",
            *map(seconds, (found.step, found.compute, found.update, found.communication)),
            percent(found.communication_share),
            percent(weak_efficiency(workload, hardware, N, plan)),
            f"{found.examples_per_second:,.0f}",
        )
    return table


def remedies(name: str, counts: Sequence[int], workload: Workload, plan: Plan) -> Table:
    """What each remedy gains on so many devices, and the batch that makes them unnecessary."""
    hardware, heads = HARDWARE[name], [f"on {N:,}" for N in counts]
    title = f"{name}, predicted: examples/s against the plan as it is"
    table = Table("what helps", *heads, "price", title=title, title_justify="left")
    for same in zip(*(answers(workload, hardware, N, plan) for N in counts), strict=True):
        saved = max(each.state_bytes_saved for each in same)
        price = same[0].price or f"none; saves {saved / 1e6:,.1f} MB a device"
        table.add_row(same[0].remedy, *(f"{100 * each.gain:+.1f} %" for each in same), price)
    least = [least_batch(workload, hardware, N, plan) for N in counts]
    cells = ["never" if size is None else f"{size:,}" for size in least]
    table.add_row(f"least batch per device for {GOAL:.0%} efficiency", *cells, "")
    return table
