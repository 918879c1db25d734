"""Pictures of weak and strong scaling: SVG files that stand alone and read on light and on dark pages."""

from collections.abc import Callable
from typing import Any

from pmapdp.pictures import SOFT, STRATEGY_COLOURS, drawing, svg

LINES = [("-", "pmap"), ("--", "jit"), (":", "shard_map")]  # grey is kept for what is ideal


def pictures(report: dict[str, Any]) -> dict[str, str]:
    """File names and SVG files: efficiency with the same batch on each device, and speed-up of one global batch."""
    batch = f"{report['plan']['per_device_batch'] * report['plan']['accumulate']:g}"
    name, strong = report["workload"]["name"], f"{report['strong_batch']:,}"
    return {
        "weak.svg": picture(
            report["hardware"],
            "weak_efficiency",
            f"Weak scaling, predicted: {name}",
            f"{batch} examples per device and update: time on one device over time on N",
            "{:.0%}".format,
        ),
        "strong.svg": picture(
            report["hardware"],
            "strong_speedup",
            f"Strong scaling, predicted: {name}",
            f"{strong} examples in all: times faster than one device",
            lambda factor: f"\u00d7 {factor:,.0f}" if factor >= 1 else f"\u00d7 {factor:.2g}",
        ),
    }


def picture(machines: dict[str, Any], field: str, title: str, note: str, label: Callable[[float], str]) -> str:
    """A line for each machine of a report, its last value in the legend, and the line that no machine can be above.

    `field` is that of the rows of a curve, `note` stands below the title, and `label` writes a value.
    """
    with drawing(8, 4) as (figure, axes):
        most = 1
        for (dash, colour), (name, machine) in zip(LINES, machines.items(), strict=False):
            points = [(row["devices"], row[field]) for row in machine["curve"] if row[field] is not None]
            most = max(most, points[-1][0])
            end = f"{name}: {label(points[-1][1])}"
            axes.plot(*zip(*points, strict=True), dash, color=STRATEGY_COLOURS[colour], linewidth=2.5, label=end)
        axes.set_xscale("log", base=2)
        strong = field == "strong_speedup"
        axes.plot((1, most), (1, most if strong else 1), ":", color=SOFT, label="ideal")
        if strong:
            axes.set_yscale("log", base=2)
        axes.set_ylim(*((0.25, None) if strong else (0, 1.05)))
        axes.xaxis.set_major_formatter(lambda tick, _: f"{tick:,.0f}")
        axes.yaxis.set_major_formatter(lambda tick, _: label(tick))
        axes.set_xlabel("devices")
        axes.set_title(note, weight="normal", size="medium", color=SOFT)
        figure.suptitle(title, x=0.02, ha="left", weight="bold")
        axes.grid(axis="y")
        axes.legend(frameon=False, title=f"at {most:,} devices")
        return svg(figure, title, alone=True)
