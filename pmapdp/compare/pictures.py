"""Pictures of a comparison as SVG and HTML. A device has a colour, and nothing else has one of these colours."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

# The Okabe-Ito palette, which colour-blind readers can tell apart (Okabe and Ito, "Color universal design", 2008),
# and a grey. More devices than colours start again from the first.
DEVICE_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#B8A800", "#8C8C8C")
INK = "#767676"  # has a contrast of at least 4.5 : 1 to white and to black
MOST_DRAWN = 16  # devices
LANE = 12  # pixels


def colour_of(device: int) -> str:
    """Return a device's colour."""
    return DEVICE_COLOURS[device % len(DEVICE_COLOURS)]


def boxes(run: dict[str, Any]) -> str:
    """Draw what each device holds: its part of the batch in its colour, and the weights in one colour."""
    N, batch, state = run["devices"], run["holds"].get("batch"), run["holds"]["state"]
    fills = [colour_of(device) for device in range(min(N, MOST_DRAWN))]
    html = ""
    if batch:
        part = f"1/{N} of the batch" if batch["split"] else "the whole batch"
        html = row_of_boxes(fills if batch["split"] or N == 1 else [INK] * len(fills), f"{part}, {batch['on_device']}")
    is_stacked = state["split"] and state["shape"][0] == N
    weights = "the weights" if N == 1 else f"the same weights, {N} times"
    if state["split"]:
        weights = f"{weights}, as the rows of" if is_stacked else f"1/{N} of the weights,"
    return html + row_of_boxes(["var(--weights)"] * len(fills), f"{weights} {state['shape']}")


def row_of_boxes(fills: Sequence[str], note: str) -> str:
    """Draw a box for each device, and a note below them."""
    inner = "".join(f'<i style="background:{fill}"></i>' for fill in fills)
    return f'<span class="devices" role="img" aria-label="{escape(note)}">{inner}</span><small>{escape(note)}</small>'


def timeline(events: Sequence[Sequence[Any]], devices: int, longest: float, by_compiler: bool) -> str:
    """Draw a lane for each device; operations of one phase in a row are one box. `longest` is the width in ms."""
    spans: list[list[Any]] = []
    for device, phase, start, end in events:
        if spans and spans[-1][:2] == [device, phase] and start - spans[-1][3] < longest / 200:
            spans[-1][3] = max(end, spans[-1][3])
        else:
            spans.append([device, phase, start, end])
    height, body = LANE * min(devices, MOST_DRAWN), ""
    for device in range(min(devices, MOST_DRAWN)):
        body += f'<rect x="0" y="{LANE * device + 1}" width="8" height="{LANE - 2}" fill="{colour_of(device)}"/>'
    for device, phase, start, end in spans:
        if device < MOST_DRAWN:
            kind = f"{phase} dashed" if by_compiler and phase == "all-reduce" else phase
            place = f'x="{14 + 940 * start / longest:.1f}" y="{LANE * device + 1}" height="{LANE - 2}"'
            body += f'<rect class="{kind}" {place} width="{max(0.8, 940 * (end - start) / longest):.1f}"/>'
    last = max(end for *_, end in events)
    body += f'<text x="{18 + 940 * last / longest:.0f}" y="{height - 2}">{last:.1f} ms</text>'
    note = f"One update on {devices} devices, {last:.1f} ms: forward, backward, all-reduce, update"
    return f'<svg viewBox="0 0 1010 {height}" role="img" aria-label="{note}">{body}</svg>'


def bars(rows: Sequence[tuple[str, Mapping[str, float], str, Mapping[str, float]]]) -> str:
    """Draw bars on one scale: rows of name, parts by kind, text, and the `low` and `high` end of a range."""
    longest = max(max(sum(parts.values()), span.get("high", 0)) for _, parts, _, span in rows) or 1
    html = ""
    for name, parts, text, span in rows:
        bar = "".join(
            f'<i class="{kind}" style="width:{100 * size / longest:.2f}%"></i>' for kind, size in parts.items()
        )
        if span:
            left, width = 100 * span["low"] / longest, 100 * (span["high"] - span["low"]) / longest
            bar += f'<u style="left:{left:.2f}%;width:{max(width, 0.3):.2f}%"></u>'
        html += f'<div class="name">{escape(name)}</div><div class="bar">{bar}</div><div>{escape(text)}</div>'
    return f'<div class="bars">{html}</div>'
