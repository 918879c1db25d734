"""The picture of lesson 16: what a clock sees."""

import drawing


def three_durations() -> None:
    """Python and the device over time, and the durations that a clock around a call can give."""
    axes = drawing.canvas(20, 5.2)
    rows = {
        "Python": [("trace", 2.2), ("compile", 4.6), ("call", 1.4), ("call", 1.4)],
        "device": [("step", 3.4), ("step", 3.4)],
    }
    for row, (name, pieces) in enumerate(rows.items()):
        left = 2.6 if name == "Python" else 10.8
        axes.text(0, 1.5 + 1.5 * row, name, va="center", weight="bold")
        for text, width in pieces:
            drawing.box(axes, left, 1.1 + 1.5 * row, text, device=row, width=width - 0.1)
            left += width
    spans = ((0.6, 2.6, 10.8, "first call"), (4, 10.8, 12.2, "without waiting"), (4.8, 14.2, 17.6, "a step"))
    for y, start, end, name in spans:
        axes.annotate("", (end, y), (start, y), arrowprops={"arrowstyle": "<->", "color": drawing.INK})
        axes.text(end + 0.2, y, name, va="center")
