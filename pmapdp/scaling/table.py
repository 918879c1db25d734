"""The tables of the predictions and of their checks, printed with rich."""

from typing import Any

from rich.console import Console
from rich.table import Table

from pmapdp.scaling.checks import Check, Line
from pmapdp.scaling.fit import typical


def seconds(value: float) -> str:
    """With a unit that leaves three digits."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value * 1e6:.3g} \u00b5s"


def percent(share: float) -> str:
    """A share with one digit behind the point."""
    return f"{100 * share:.1f} %"


def difference(share: float) -> str:
    """A share with its sign."""
    return f"{100 * share:+.1f} %"


def quantity(value: float, unit: str) -> str:
    """A value of a check."""
    if unit == "s":
        return seconds(value)
    return f"{value:,.0f} {unit}".strip() if value == int(value) else f"{value:.3f} {unit}".strip()


def print_predictions(report: dict[str, Any], console: Console) -> None:
    """A table for each hardware."""
    for name, machine in report["hardware"].items():
        table = Table(
            *("devices", "step", "compute", "update", "all-reduce", "waiting", "weak efficiency", "strong speed-up"),
            *("examples/s",),
            title=f"{name}, predicted: {machine['title']}",
            title_justify="left",
        )
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


def print_here(rows: list[dict[str, float]], console: Console) -> None:
    """A table for the simulated devices of this machine."""
    table = Table(
        *("devices", "step", "compute", "all-reduce", "waiting", "weak efficiency"),
        title="simulated devices of this machine, which share its cores; predicted from constants measured above",
        title_justify="left",
    )
    for row in rows:
        table.add_row(
            f"{row['devices']:,}",
            *(seconds(row[key]) for key in ("step", "compute", "communication")),
            *(percent(row[key]) for key in ("communication_share", "weak_efficiency")),
        )
    console.print(table)


def print_answers(report: dict[str, Any], console: Console) -> None:
    """When does it pay? One table for each hardware."""
    for name, machine in report["hardware"].items():
        many = [goal["devices"] for goal in machine["goals"]]
        if not many:
            continue
        table = Table(
            "when does it pay?",
            *(f"on {N:,}" for N in many),
            "price",
            title=f"{name}, predicted: examples/s against the plan as it is",
            title_justify="left",
        )
        for remedy in dict.fromkeys(each["remedy"] for each in machine["answers"]):
            same = [each for each in machine["answers"] if each["remedy"] == remedy]
            saved = max(each["state_bytes_saved"] for each in same)
            price = same[0]["price"] or (f"none; saves {saved / 1e6:,.1f} MB a device" if saved else "none")
            table.add_row(remedy, *(difference(each["gain"]) for each in same), price)
        for key, label in (("per_device_batch", "least batch per device"), ("accumulate", "least accumulation")):
            cells = ["never" if goal[key] is None else f"{goal[key]:,}" for goal in machine["goals"]]
            table.add_row(f"{label} for {machine['goals'][0]['efficiency']:.0%} efficiency", *cells, "")
        console.print(table)


def print_checks(checks: list[Check], console: Console) -> None:
    """Every prediction beside what was found, and the typical error of each check."""
    for check in checks:
        table = Table("check", "predicted", "found", "error", title=check.title, title_justify="left")
        for line in check.lines:
            table.add_row(
                line.what, quantity(line.predicted, line.unit), quantity(line.found, line.unit), difference(line.error)
            )
        console.print(table)
        console.print(f"median error {percent(median_error(check.lines))}", *constants(check), sep="; ", soft_wrap=True)


def median_error(lines: list[Line]) -> float:
    """Median size of the errors."""
    return typical([line.error for line in lines])


def constants(check: Check) -> list[str]:
    """The fitted constants in readable units."""
    found = []
    for name, value in check.constants.items():
        label = name.removesuffix("_seconds").replace("_", " ")
        if name == "seconds_per_byte":
            found.append(f"{1e-9 / value:.2f} GB/s" if value else "bandwidth too high to see")
        elif name.endswith("_seconds"):
            found.append(f"{label} {seconds(value)}")
    return found
