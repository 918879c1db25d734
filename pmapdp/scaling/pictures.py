"""Pictures of weak and strong scaling: SVG files that stand alone and read on light and on dark pages."""

from collections.abc import Callable
from typing import Any

from pmapdp.pictures import SOFT, STRATEGY_COLOURS, drawing, svg

LINES = [("-", "pmap"), ("--", "jit"), (":", "shard_map")]  # grey is kept for what is ideal


def weak_picture(report: dict[str, Any]) -> str:
    """Efficiency against the number of devices, each with the same batch."""
    batch = f"{report['plan']['per_device_batch'] * report['plan']['accumulate']:g}"
    return picture(
        report,
        "Weak scaling, predicted",
        f"{batch} examples per device and update: time on one device over time on N",
        lambda row: row["weak_efficiency"],
        "{:.0%}".format,
        lambda N: 1.0,
    )


def strong_picture(report: dict[str, Any]) -> str:
    """Speed-up against the number of devices that share one global batch."""
    return picture(
        report,
        "Strong scaling, predicted",
        f"{report['strong_batch']:,} examples in all: times faster than one device",
        lambda row: row["strong_speedup"],
        lambda factor: f"\u00d7 {factor:,.0f}" if factor >= 1 else f"\u00d7 {factor:.2g}",
        float,
    )


def picture(
    report: dict[str, Any],
    title: str,
    note: str,
    value: Callable[[dict[str, Any]], float | None],
    label: Callable[[float], str],
    ideal: Callable[[int], float],
) -> str:
    """A line for each machine, its name and last value at its end, and the line that no machine can be above.

    Args:
        report: see `make_report`.
        title: above the picture; said by a screen reader too.
        note: below the title.
        value: of a row; None where there is none.
        label: of a value.
        ideal: of N devices; above 1 the axis is logarithmic.
    """
    with drawing(8, 4) as (figure, axes):
        most = 1
        for (dash, colour), (name, machine) in zip(LINES, report["hardware"].items(), strict=False):
            points = [(row["devices"], found) for row in machine["curve"] if (found := value(row)) is not None]
            most = max(most, points[-1][0])
            end = f"{name}: {label(points[-1][1])}"
            axes.plot(*zip(*points, strict=True), dash, color=STRATEGY_COLOURS[colour], linewidth=2.5, label=end)
        axes.plot((1, most), (ideal(1), ideal(most)), ":", color=SOFT, label="ideal")
        axes.set_xscale("log", base=2)
        if ideal(most) > 1:
            axes.set_yscale("log", base=2)
            axes.set_ylim(bottom=0.25)
        else:
            axes.set_ylim(0, 1.05)
        axes.yaxis.set_major_formatter(lambda tick, _: label(tick))
        axes.xaxis.set_major_formatter(lambda tick, _: f"{tick:,.0f}")
        axes.set_xlabel("devices")
        axes.set_title(note, weight="normal", size="medium", color=SOFT)
        figure.suptitle(f"{title}: {report['workload']['name']}", x=0.02, ha="left", weight="bold")
        axes.grid(axis="y")
        axes.legend(frameon=False, title=f"at {most:,} devices")
        return svg(figure, title, alone=True)
