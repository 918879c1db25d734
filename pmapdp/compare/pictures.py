"""Draw an update and the losses, as SVG.

A device has a colour, and nothing else has one of these colours. The all-reduce is
yellow. The classes `sums`, `all-reduce` and `weights` are those of the lines of code
that do the same, and `page.css` marks them together.
"""

import math
from collections.abc import Sequence

import numpy as np
from markupsafe import Markup

from pmapdp.compare.results import Measurement
from pmapdp.compare.wrong_strategies import WRONG_STRATEGIES

# The Okabe-Ito palette, which colour-blind readers can tell apart (Okabe and Ito,
# "Color universal design", 2008), and a grey. More devices than colours start again
# from the first.
DEVICE_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#B8A800",
    "#8C8C8C",
)
INK = "#767676"  # has a contrast of at least 4.5 : 1 to white and to black
MOST_DRAWN = 16  # devices
MOST_NUMBERED = 8  # devices whose numbers fit
UPDATE_WIDTH = 240  # pixels
CURVE_WIDTH = 460
CURVE_HEIGHT = 170
CURVE_TOP = 8
CURVE_LEFT = 44  # beside the labels of the axis


def colour_of(device: int) -> str:
    """Return a device's colour."""
    return DEVICE_COLOURS[device % len(DEVICE_COLOURS)]


def picture(width: float, height: float, note: str, *parts: str) -> Markup:
    """Put parts into a picture that's as wide as its place."""
    return Markup(
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" aria-label="{note}">'
        f"{''.join(parts)}</svg>"
    )


def box(
    x: float, y: float, width: float, height: float, kind: str, fill: str = ""
) -> str:
    """Draw a rectangle of a class. Without a colour, the page's style fills it."""
    size = f'width="{width:.1f}" height="{height:g}"'
    return f'<rect class="{kind}" x="{x:.1f}" y="{y:g}" {size} rx="2" fill="{fill}"/>'


def label(
    x: float, y: float, text: str, anchor: str = "start", kind: str = "label"
) -> str:
    """Write a text, of a class for its size."""
    place = f'x="{x:.1f}" y="{y:g}"'
    return f'<text class="{kind}" {place} text-anchor="{anchor}">{text}</text>'


def sees_whole_batch(run: Measurement) -> bool:
    """Return True if the function is given the global batch, as under jit."""
    return run.sees[0] == run.global_batch_size


def draw_update(run: Measurement) -> Markup:
    """Draw an update from the batch to the new weights.

    The strategies differ only in the place of the yellow bar: in your function, or
    outside of it.
    """
    N = min(run.devices, MOST_DRAWN)
    tile = UPDATE_WIDTH / N
    # From top to bottom: the batch at 15 pixels, your function from 54, in it the sums
    # at 60 with their numbers, the all-reduce at 94, and the weights at 152. A label is
    # above its part.
    parts = [label(0, 10, "batch"), *draw_function(run, N)]
    for device in range(N):
        left = device * tile + 2
        colour = colour_of(device)
        parts.append(box(left, 15, tile - 4, 12, "batch", colour))
        parts.append(box(left + 0.2 * tile, 60, 0.6 * tile - 4, 12, "sums", colour))
        parts.append(box(left, 152, tile - 4, 12, "weights"))
    if run.devices <= MOST_NUMBERED:
        for device, number in enumerate(run.gradient_sums):
            middle = (device + 0.5) * tile
            parts.append(label(middle, 83, write_number(number), "middle", "number"))
    if run.collectives:
        total = ""
        if run.gradient_sums:
            # Not of the numbers as written, each of which is rounded.
            total = f": ≈ {write_number(sum(run.gradient_sums))}"
        texts = f"you add up{total}", f"the compiler adds up{total}"
        parts += draw_all_reduce(run, 4, 94, UPDATE_WIDTH - 8, 18, *texts)
    parts.append(label(0, 146, "new weights, all equal" if N > 1 else "new weights"))
    parts += [label(UPDATE_WIDTH / 2, y, "↓", "middle") for y in (37, 134)]
    note = "From the batch over gradient sums to new weights"
    return picture(UPDATE_WIDTH, 168, note, *parts)


def write_number(number: float) -> str:
    """Write a number with two decimals, and with a minus that isn't a hyphen."""
    return f"{number:.2f}".replace("-", "\u2212")


def draw_function(run: Measurement, N: int) -> list[str]:
    """Draw your function, once around the whole batch or once around each part.

    It ends below the all-reduce if that is in it.
    """
    text = f"{run.devices} × your function: gradient sums"
    if sees_whole_batch(run):
        text = "your function: gradient sums"
        N = 1
    height = 34
    if run.collectives and run.collectives[0].written:
        height = 64
    width = UPDATE_WIDTH / N
    parts = [label(0, 48, text)]
    for number in range(N):
        left = number * width + 1
        parts.append(box(left, 54, width - 2, height, "function"))
    return parts


def draw_all_reduce(
    run: Measurement,
    x: float,
    y: float,
    width: float,
    height: float,
    yours: str,
    compilers: str,
) -> list[str]:
    """Draw a yellow bar with one of two texts. It's dashed if it's the compiler's."""
    kind = "all-reduce dashed"
    text = compilers
    if run.collectives[0].written:
        kind = "all-reduce"
        text = yours
    bar = box(x, y, width, height, kind)
    return [bar, label(x + width / 2, y + height / 2 + 4, text, "middle")]


def draw_timeline(run: Measurement) -> Markup:
    """Sketch an update in time, which goes to the right, with a row for each device.

    The lengths are made up. A device that's ready waits for the others.
    """
    N = min(run.devices, MOST_DRAWN)
    bottom = 8 * N  # pixels
    parts = []
    for device in range(N):
        y = 8 * device
        end = 188
        if run.collectives:
            end = 126 - 4 * (3 * device % 8)
            parts.append(f'<path class="grid-line" d="M{end} {y + 3}H130"/>')
        parts.append(box(0, y, end, 6, "sums", colour_of(device)))
        parts.append(box(192, y, 46, 6, "weights"))
    parts.append(label(0, bottom + 12, "gradient sums"))
    parts.append(label(215, bottom + 12, "update", "middle"))
    if run.collectives:
        parts += draw_all_reduce(run, 130, 0, 58, bottom - 2, "you", "compiler")
        parts.append(label(159, bottom + 12, "all-reduce", "middle"))
    return picture(UPDATE_WIDTH, bottom + 16, "An update in time, a sketch", *parts)


def draw_losses(runs: Sequence[Measurement]) -> Markup:
    """Draw the losses of runs by update, from 0 to the largest one."""
    values = np.array([run.losses for run in runs])
    top = values[np.isfinite(values)].max()
    axis = {f"{top * part:.2g}": part for part in (0, 0.5, 1)}
    curves = []
    for run in runs:
        heights = [loss / top for loss in run.losses]
        curves.append(draw_curve(run, heights))
    return plot("loss", runs, axis, curves)


def draw_differences(runs: Sequence[Measurement]) -> Markup:
    """Draw how far the losses are from a single device's, by update, on a log scale."""
    single, *others = runs
    reference = np.array(single.losses)
    curves = []
    for run in others:
        differences = np.abs(run.losses - reference) / np.abs(reference)
        heights = [log_height(difference) for difference in differences]
        curves.append(draw_curve(run, heights))
    texts = ("0", "1e-12", "1e-8", "1e-4", "1")
    axis = {text: log_height(float(text)) for text in texts}
    return plot("difference", others, axis, curves)


def log_height(difference: float) -> float:
    """Return the height on a log scale from 1e-17, at the bottom, to 10, at the top.

    Numbers of 53 bits that differ at all differ by more than 1e-17, so the bottom is
    free for a difference of 0.
    """
    if difference == 0:
        return 0.0
    return (math.log10(difference) + 17) / 18


def draw_curve(run: Measurement, heights: Sequence[float]) -> str:
    """Draw a line for a run through points of heights between 0 and 1.

    A single device's is wide, so that the others' can lie on it. A wrong run is red.
    """
    kind = "curve"
    if run.strategy == "single":
        kind = "curve reference"
    elif run.strategy in WRONG_STRATEGIES:
        kind = "curve off-curve"
    points = []
    last = max(len(heights) - 1, 1)
    for update, height in enumerate(heights):
        x = CURVE_LEFT + 4 + (CURVE_WIDTH - CURVE_LEFT - 8) * update / last
        y = CURVE_TOP + CURVE_HEIGHT * (1 - min(height, 1.0))
        points.append(f"{x:.1f} {y:.1f}")
    return f'<path class="{kind}" d="M{"L".join(points)}"/>'


def plot(
    name: str,
    runs: Sequence[Measurement],
    axis: dict[str, float],
    curves: Sequence[str],
) -> Markup:
    """Draw curves over the updates, with the axis' labels at their heights."""
    parts = []
    for text, height in axis.items():
        y = CURVE_TOP + CURVE_HEIGHT * (1 - height)
        line = f"M{CURVE_LEFT} {y:.1f}H{CURVE_WIDTH}"
        parts.append(f'<path class="grid-line" d="{line}"/>')
        parts.append(label(CURVE_LEFT - 4, y + 4, text, "end"))
    bottom = CURVE_TOP + CURVE_HEIGHT + 15
    last = max(len(run.losses) for run in runs)
    parts.append(label(CURVE_LEFT + 4, bottom, "1"))
    parts.append(label(CURVE_WIDTH / 2, bottom, "update", "middle"))
    parts.append(label(CURVE_WIDTH - 4, bottom, str(last), "end"))
    note = f"The {name} by update: {', '.join(run.name for run in runs)}"
    return picture(CURVE_WIDTH, bottom + 5, note, *parts, *curves)
