"""The tables of the predictions, printed with rich."""

from typing import Any

from rich.console import Console
from rich.table import Table


def seconds(value: float) -> str:
    """With a unit that leaves three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value * 1e6:.3g} \u00b5s"


def percent(share: float) -> str:
    """A share with one digit behind the point."""
    return f"{100 * share:.1f} %"


def print_predictions(report: dict[str, Any], console: Console) -> None:
    """A table for each hardware."""
    heads = "devices", "step", "compute", "update", "all-reduce", "waiting", "weak efficiency", "strong speed-up"
    for name, machine in report["hardware"].items():
        table = Table(*heads, "examples/s", title=f"{name}, predicted: {machine['title']}", title_justify="left")
        for row in machine["rows"]:
            strong = row["strong_speedup"]
            table.add_row(
                f"{row['devices']:,}",
                *(seconds(row[key]) for key in ("step", "compute", "update", "communication")),
                percent(row["communication_share"]),
                percent(row["weak_efficiency"]),
                "\u2013" if strong is None else f"{strong:,.1f}",
                f"{row['examples_per_second']:,.0f}",
            )
        console.print(table)


def print_answers(report: dict[str, Any], console: Console) -> None:
    """When does it pay? One table for each hardware."""
    for name, machine in report["hardware"].items():
        goals = machine["goals"]
        if not goals:
            continue
        heads = "when does it pay?", *(f"on {goal['devices']:,}" for goal in goals), "price"
        title = f"{name}, predicted: examples/s against the plan as it is"
        table = Table(*heads, title=title, title_justify="left")
        for remedy in dict.fromkeys(each["remedy"] for each in machine["answers"]):
            same = [each for each in machine["answers"] if each["remedy"] == remedy]
            saved = max(each["state_bytes_saved"] for each in same)
            price = same[0]["price"] or (f"none; saves {saved / 1e6:,.1f} MB a device" if saved else "none")
            table.add_row(remedy, *(f"{100 * each['gain']:+.1f} %" for each in same), price)
        for key, label in (("per_device_batch", "least batch per device"), ("accumulate", "least accumulation")):
            cells = ["never" if goal[key] is None else f"{goal[key]:,}" for goal in goals]
            table.add_row(f"{label} for {goals[0]['efficiency']:.0%} efficiency", *cells, "")
        console.print(table)
