"""Pictures as SVG, written by hand: what devices hold, each in its colour, and curves. They read on light and dark
pages."""

import itertools
import math
from collections.abc import Sequence
from html import escape

# The Okabe-Ito palette, which colour-blind readers can tell apart (Okabe and Ito, "Color universal design", 2008),
# and a grey. More devices than colours start again from the first.
DEVICE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#8C8C8C")

# Each has a contrast of at least 4.5 : 1 to white and to black: the grey, and hues of that palette.
INK = "#767676"
STRATEGY_COLOURS = {
    "single": INK, "pmap": "#007bc0", "pmap, stacked": "#a75e86", "shard_map": "#008661", "jit": "#c15500"
}  # fmt: skip
MOST_DRAWN = 16  # devices
Curve = tuple[str, str, Sequence[float]]  # name, colour, and the values from the first update on


def devices(parts: Sequence[list[float]]) -> str:
    """A box for each device, filled where it holds its part of the array, from the first row at the top to the last."""
    drawn, boxes = parts[:MOST_DRAWN], ""
    for number, (start, stop) in enumerate(drawn):
        colour, x = DEVICE_COLOURS[number % len(DEVICE_COLOURS)], 1 + 20 * number
        boxes += (
            f'<rect x="{x}" y="{1 + 30 * start:.2f}" width="16" height="{30 * (stop - start):.2f}" fill="{colour}"/>'
        )
        boxes += f'<rect x="{x}" y="1" width="16" height="30" fill="none" stroke="{colour}"/>'
    width = 20 * len(drawn) - 2
    return (
        f'<svg viewBox="0 0 {width} 32" width="{width}" height="32" role="img" aria-label="{say(parts)}">{boxes}</svg>'
    )


def say(parts: Sequence[list[float]]) -> str:
    """The picture of `devices` in words."""
    N = len(parts)
    if N == 1:
        return "One device holds all of it"
    if all(stop - start == 1 for start, stop in parts):
        return f"Each of {N} devices holds all of it"
    return f"Each of {N} devices holds another 1/{round(1 / (parts[0][1] - parts[0][0]))} of it, in their order"


def curves(named: Sequence[Curve], title: str, log: bool = False) -> str:
    """Curves over each other, the first widest, so that equal ones show as stripes of one band; `log`: a logarithmic
    scale, on which values that are not above 0 are left out."""
    width, height, left, bottom = 620, 300, 56, 34
    values = [y for _, _, ys in named for y in ys if y > 0 or not log]
    if not values:
        return f"<p>{escape(title)}: there is nothing to draw, for every value is 0.</p>"
    low, high = (math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))) if log else (0, max(values))
    high = high if high > low else low + 1
    longest = max(len(ys) for _, _, ys in named)

    def place(x: int, y: float) -> str:
        share = ((math.log10(y) if log else y) - low) / (high - low)
        across = left + (width - left - 8) * (x / max(1, longest - 1))
        return f"{across:.1f},{8 + (height - bottom - 8) * (1 - share):.1f}"

    body = ""
    every = max(1, math.ceil((high - low) / 6)) if log else (high - low) / 4
    ticks = [low + every * n for n in range(int((high - low) / every + 1e-9) + 1)]
    for tick in ticks:
        y = float(place(0, 10.0**tick if log else tick).split(",")[1])
        label = f'10<tspan dy="-5" font-size="9">{tick}</tspan>' if log else f"{tick:.2g}"
        body += f'<line x1="{left}" x2="{width - 8}" y1="{y}" y2="{y}" stroke="{INK}" stroke-opacity="0.3"/>'
        body += f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{label}</text>'
    for number, (name, colour, ys) in enumerate(named):
        stroke = 8 - 6.5 * number / max(1, len(named) - 1)
        groups = itertools.groupby(enumerate(ys), lambda item: item[1] > 0 or not log)
        lines = [" ".join(place(*item) for item in group) for drawn, group in groups if drawn]
        body += f'<g fill="none" stroke="{colour}" stroke-width="{stroke:.1f}" stroke-linecap="round">'
        body += f"<title>{escape(name)}</title>"
        body += "".join(f'<polyline points="{line} {line.rsplit(" ", 1)[-1]}"/>' for line in lines) + "</g>"
    body += f'<text x="{left}" y="{height - 6}">update 1</text>'
    body += f'<text x="{width - 8}" y="{height - 6}" text-anchor="end">update {longest}</text>'
    return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" class="curves">{body}</svg>'


def legend(named: Sequence[Curve]) -> str:
    """The names of curves beside their colours."""
    items = "".join(f'<li><i style="background:{colour}"></i>{escape(name)}</li>' for name, colour, _ in named)
    return f'<ul class="legend">{items}</ul>'
