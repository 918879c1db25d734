"""The pictures of the comparison: loss curves, bars, and the rows of a batch on their devices."""

import itertools
import math
from typing import Any, NamedTuple

from pmapdp.colours import device_colour, text_colour
from pmapdp.compare.svg import element, figure, percent, stretched, text
from pmapdp.compare.table import run_name

DASHES = ("", "12 6", "4 5", "16 5 4 5")  # by number of devices; more start again from the first
LARGEST_DRAWN = 128  # cells in a row; in longer rows only the parts that lie on one device are told apart


class Bar(NamedTuple):
    """A bar of one run: `parts` are lengths with a style class each, `spread` a range shown upon it."""

    run: dict[str, Any]
    parts: list[tuple[float, str]]
    label: str
    spread: tuple[float, float] | None = None


def ticks(top: float, about: int = 4) -> list[float]:
    """Round numbers from 0 up to `top`, roughly `about` of them."""
    if top <= 0:
        return [0.0]
    raw = top / about
    unit = 10 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw)
    return [number * step for number in range(math.floor(top / step + 1e-9) + 1)]


def line_styles(runs: list[dict[str, Any]]) -> list[dict[str, object]]:
    """How each run's curve is drawn: the first is the widest and lies lowest, so that equal curves all show."""
    counts = sorted({run["devices"] for run in runs if run["strategy"] != "single"})
    styles: list[dict[str, object]] = []
    for number, run in enumerate(runs):
        dash = "" if run["strategy"] == "single" else DASHES[counts.index(run["devices"]) % len(DASHES)]
        width = 1.5 + 9 * (len(runs) - 1 - number) / max(1, len(runs) - 1)
        styles.append({"class_": f"line {run['strategy']}", "stroke_width": f"{width:.1f}", "stroke_dasharray": dash})
    return styles


def loss_curves(runs: list[dict[str, Any]], height: int = 300) -> str:
    """The loss of every update, all runs over each other."""
    top = 1.05 * max(max(run["losses"]) for run in runs if not run["error"])
    steps = max(len(run["losses"]) for run in runs if not run["error"])
    marks = []
    for value in ticks(top):
        y = percent(1 - value / top)
        marks.append(element("line", x1="0", x2="100%", y1=y, y2=y, class_="grid"))
        marks.append(text(f"{value:g}", x="-8", y=y, dy="0.35em", text_anchor="end"))
    for value in ticks(steps)[1:]:
        x = percent((value - 1) / max(1, steps - 1))
        marks.append(text(f"{value:g}", x=x, y=height + 18, text_anchor="middle"))
    curves = []
    for run, style in zip(runs, line_styles(runs), strict=True):
        if not run["error"]:
            across = 1000 / max(1, len(run["losses"]) - 1)
            points = " ".join(f"{i * across:.1f},{1000 * (1 - y / top):.2f}" for i, y in enumerate(run["losses"]))
            curves.append(element("polyline", points=points, **style))
    return figure("losses", "Loss of every update, one curve a run", height, *marks, stretched(*curves))


def key(runs: list[dict[str, Any]]) -> str:
    """A sample of each run's line beside its name."""
    entries = [
        element(
            "li",
            element(
                "svg",
                element("line", x1="0", x2="34", y1="8", y2="8", **style),
                width=34,
                height=16,
                aria_hidden="true",
            ),
            run_name(run),
        )
        for run, style in zip(runs, line_styles(runs), strict=True)
        if not run["error"]
    ]
    return element("ul", *entries, class_="key")


def bars(identifier: str, title: str, entries: list[Bar]) -> str:
    """A bar for each run, from zero, its name and value above it."""
    longest = max(
        [sum(length for length, _ in bar.parts) for bar in entries] + [bar.spread[1] for bar in entries if bar.spread]
    )
    drawn, row = [], 46
    for number, bar in enumerate(entries):
        y, left = number * row, 0.0
        drawn.append(text(run_name(bar.run), x="0", y=y + 14, class_="name"))
        drawn.append(text(bar.label, x="100%", y=y + 14, text_anchor="end"))
        for length, style in bar.parts:
            share = length / longest if longest else 0
            drawn.append(
                element("rect", x=percent(left), width=percent(share), y=y + 20, height=16, class_=f"bar {style}")
            )
            left += share
        if bar.spread and longest:
            low, high = (percent(value / longest) for value in bar.spread)
            drawn.append(element("line", x1=low, x2=high, y1=y + 28, y2=y + 28, class_="spread"))
            drawn += [element("line", x1=x, x2=x, y1=y + 24, y2=y + 32, class_="spread") for x in (low, high)]
    return figure(identifier, title, len(entries) * row, *drawn)


def batch_rows(identifier: str, run: dict[str, Any]) -> str:
    """The rows of one batch as the strategy's array holds them, each in the colour of its device."""
    batch = run["batch"]
    across = batch["rows_shape"][-1]
    lines, padding = split(batch["devices"], across), set(batch["padding"])
    height = 30 if len(lines) == 1 else 22
    drawn = []
    for number, line in enumerate(lines):
        start = 0
        for device, group in itertools.groupby(line):
            width = len(list(group))
            drawn += cells(device, start, width, across, number, height, {row - number * across for row in padding})
            start += width
    title = f"{run_name(run)}: which device holds which of the {len(batch['devices'])} rows of a batch"
    return figure(identifier, title, len(lines) * height, *drawn)


def split(values: list[int], across: int) -> list[list[int]]:
    """Lines of `across` values."""
    return [values[start : start + across] for start in range(0, len(values), across)]


def cells(device: int, start: int, width: int, across: int, line: int, height: int, padding: set[int]) -> list[str]:
    """Neighbouring rows on one device, and its number upon them."""
    colour, y = device_colour(device), line * height
    parts = [(cell, 1) for cell in range(start, start + width)] if across <= LARGEST_DRAWN else [(start, width)]
    drawn = [
        element(
            "rect",
            x=percent(left / across),
            width=percent(length / across),
            y=y + 1,
            height=height - 2,
            fill=colour,
            class_="cell padding" if left in padding else "cell",
        )
        for left, length in parts
    ]
    if width / across > 0.05:
        middle = percent((start + width / 2) / across)
        label = {"x": middle, "y": y + height / 2, "dy": "0.35em", "text_anchor": "middle", "fill": text_colour(colour)}
        drawn.append(text(str(device), **label, class_="device"))
    return drawn
