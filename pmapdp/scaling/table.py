"""The tables of the predictions, printed with rich."""

from collections.abc import Sequence

from rich.table import Table

from pmapdp.scaling.hardware import Hardware
from pmapdp.scaling.predict import GOAL, Plan, least_batch, predict, remedies, weak_efficiency
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


def predictions(hardware: Hardware, counts: Sequence[int], workload: Workload, plan: Plan) -> Table:
    """A row for each number of devices."""
    heads = "devices", "step", "compute", "update", "all-reduce", "waiting", "efficiency", "examples/s"
    table = Table(*heads, title=f"predicted: {hardware.title}", title_justify="left")
    for N in counts:
        found = predict(workload, hardware, N, plan)
        table.add_row(
            f"{N:,}",
            *map(seconds, (found.step, found.compute, found.update, found.communication)),
            percent(found.exposed / found.step),
            percent(weak_efficiency(workload, hardware, N, plan)),
            f"{found.examples_per_second:,.0f}",
        )
    return table


def gains(hardware: Hardware, counts: Sequence[int], workload: Workload, plan: Plan) -> Table:
    """How many examples/s more each remedy brings, and the batch that makes it unnecessary."""
    title = f"predicted, examples/s against the plan as it is: {hardware.title}"
    table = Table("what helps", *(f"on {N:,}" for N in counts), "price", title=title, title_justify="left")
    for name, (other, price) in remedies(plan).items():
        rates = [[predict(workload, hardware, N, each).examples_per_second for each in (other, plan)] for N in counts]
        table.add_row(name, *(f"{100 * (changed / plain - 1):+.1f} %" for changed, plain in rates), price)
    least = [least_batch(workload, hardware, N, plan) for N in counts]
    cells = ["never" if size is None else f"{size:,}" for size in least]
    table.add_row(f"least batch per device for {GOAL:.0%} efficiency", *cells, "")
    return table
