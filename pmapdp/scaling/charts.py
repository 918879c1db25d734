"""Pictures of weak and strong scaling: SVG files that stand alone and read on light and on dark pages."""

import math
from typing import Any

from pmapdp.colours import STRATEGY_COLOURS
from pmapdp.compare.charts import DASHES
from pmapdp.compare.svg import element, text

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 74, 108, 66, 54
# Pairs for light and dark pages; grey is kept for what is ideal.
COLOURS = [STRATEGY_COLOURS[name] for name in ("pmap", "jit", "shard_map")]
INK, SOFT, RULE = ("#1d232b", "#e6e9ed"), ("#565f6b", "#a4adb8"), ("#d9dde3", "#343c46")
LEAST_GAP = 16  # between two names at the ends of lines


def style() -> str:
    """Colours for both schemes; pages show the file as an image, so it must carry them itself."""
    names = {"ink": INK, "soft": SOFT, "rule": RULE} | {f"line{i}": pair for i, pair in enumerate(COLOURS)}
    light, dark = (" ".join(f"--{name}: {pair[scheme]};" for name, pair in names.items()) for scheme in (0, 1))
    own = " ".join(f".line{i} {{ stroke: var(--line{i}); }} .name{i} {{ fill: var(--line{i}); }}" for i in range(3))
    return element(
        "style",
        f"svg {{ {light} font: 13px system-ui, sans-serif; }} "
        f"@media (prefers-color-scheme: dark) {{ svg {{ {dark} }} }} "
        "text { fill: var(--soft); } .title { fill: var(--ink); font-size: 15px; font-weight: 600; } "
        ".grid { stroke: var(--rule); } .line { fill: none; stroke-width: 2.5; stroke-linejoin: round; } "
        f".ideal {{ stroke: var(--soft); stroke-width: 1.5; }} .name {{ font-weight: 600; }} {own}",
    )


def weak_picture(report: dict[str, Any]) -> str:
    """Efficiency against the number of devices, each with the same batch."""
    curves = {
        name: [(row["devices"], row["weak_efficiency"]) for row in machine["curve"]]
        for name, machine in report["hardware"].items()
    }
    batch = f"{report['plan']['per_device_batch'] * report['plan']['accumulate']:g}"
    return picture(
        "Weak scaling, predicted",
        f"{report['workload']['name']}, {batch} examples per device and update: time on one device over time on N",
        curves,
        [(share, f"{share:.0%}") for share in (0, 0.25, 0.5, 0.75, 1)],
        lambda value: value,
        [(1, 1.0), (most(curves), 1.0)],
    )


def strong_picture(report: dict[str, Any]) -> str:
    """Speed-up against the number of devices that share one global batch."""
    curves = {
        name: [(row["devices"], row["strong_speedup"]) for row in machine["curve"] if row["strong_speedup"] is not None]
        for name, machine in report["hardware"].items()
    }
    top = most(curves)
    # A speed-up below 1 is drawn down to 1/4 and no further.
    below = any(speedup < 1 for curve in curves.values() for _, speedup in curve)
    low, high = -2 if below else 0, math.ceil(math.log2(top))
    return picture(
        "Strong scaling, predicted",
        f"{report['workload']['name']}, {report['strong_batch']:,} examples in all: times faster than one device",
        curves,
        [(2.0**power, f"{2.0**power:,g}") for power in range(low, high + 1, 2)],
        lambda value: (max(low, math.log2(value)) - low) / (high - low),
        [(1, 1.0), (top, float(top))],
    )


def most(curves: dict[str, list[tuple[int, float]]]) -> int:
    """The largest number of devices on any curve, at least 2."""
    return max([N for curve in curves.values() for N, _ in curve] + [2])


def picture(title: str, note: str, curves: dict[str, list], ticks: list, height: Any, ideal: list) -> str:
    """The frame, the lines and their names at their ends.

    Args:
        title: what it shows; said by a screen reader too.
        note: the line below the title.
        curves: name to (devices, value).
        ticks: (value, label) on the upright axis.
        height: value to its height, from 0 to 1.
        ideal: the points of the line that no machine can be above.
    """
    top = most(curves)

    def x(N: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log2(N) / math.log2(top)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * height(value)

    def path(points: list, **attributes: object) -> str:
        return element("polyline", points=" ".join(f"{x(N):.1f},{y(v):.1f}" for N, v in points), **attributes)

    drawn = [text(title, x=12, y=24, class_="title"), text(note, x=12, y=46)]
    for value, label in ticks:
        drawn.append(
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y(value):.1f}", y2=f"{y(value):.1f}", class_="grid")
        )
        drawn.append(text(label, x=LEFT - 8, y=f"{y(value):.1f}", dy="0.35em", text_anchor="end"))
    drawn += [
        text(f"{2**power:,}", x=f"{x(2**power):.1f}", y=HEIGHT - BOTTOM + 20, text_anchor="middle")
        for power in range(0, int(math.log2(top)) + 1, 2)
    ]
    drawn.append(text("devices", x=f"{(LEFT + WIDTH - RIGHT) / 2}", y=HEIGHT - 12, text_anchor="middle"))
    drawn.append(path(ideal, class_="line ideal", stroke_dasharray="2 4"))
    ends = []
    for number, (name, curve) in enumerate(curves.items()):
        drawn.append(path(curve, class_=f"line line{number}", stroke_dasharray=DASHES[number]))
        ends.append((y(curve[-1][1]), x(curve[-1][0]), name, number))
    lowest = -math.inf
    for end, across, name, number in sorted(ends):
        lowest = max(end, lowest + LEAST_GAP)
        label = {"x": f"{across + 8:.1f}", "y": f"{lowest:.1f}", "dy": "0.35em", "class_": f"name name{number}"}
        drawn.append(text(name, **label))
    return element(
        "svg",
        element("title", title, id="title"),
        style(),
        *drawn,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby="title",
    )
