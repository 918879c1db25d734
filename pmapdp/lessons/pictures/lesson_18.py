"""The picture of lesson 18: what a clock sees."""

from pmapdp.lessons import drawing


@drawing.picture
def three_durations() -> None:
    """Over time, Python traces, compiles and calls, and a device runs two steps. A clock can see the first call, dispatch, or a step."""
    axes = drawing.canvas(21, 5.4)
    rows = {
        "Python": (2.6, [("trace", 2.2), ("compile", 4.6), ("call", 1.4), ("call", 1.4)]),
        "a device": (10.8, [("step", 3.4), ("step", 3.4)]),
    }
    for row, (name, (left, pieces)) in enumerate(rows.items()):
        axes.text(0.1, 1.6 + 1.5 * row, name, va="center", weight="bold")
        for text, width in pieces:
            drawing.box(axes, left, 1.2 + 1.5 * row, text, device=0 if row else None, width=width - 0.1)
            left += width
    spans = ((0.6, 2.6, 10.8, "first call"), (4.2, 10.8, 12.2, "without waiting"), (5, 14.2, 17.6, "a step"))
    for y, start, end, name in spans:
        axes.annotate("", (end, y), (start, y), arrowprops={"arrowstyle": "<->", "color": drawing.INK})
        axes.text(end + 0.2, y, name, va="center")
