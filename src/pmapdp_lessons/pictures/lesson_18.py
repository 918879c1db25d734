"""The pictures of lesson 18: what a clock sees, and what each change gave on the way to 99 % of MNIST."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.compare.pictures import DEVICE_COLOURS
from pmapdp_lessons import drawing


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


def seconds_of_changes(way: list[dict]) -> None:
    """One bar a change: seconds of the command, and in blue those of training. `way` is as in the results of
    `python -m benchmarks.speedrun changes`."""
    _, axes = plt.subplots(figsize=(7, 3))
    for row, change in enumerate(way):
        command, training = np.median([run[:2] for run in change["runs"]], axis=0)
        axes.barh(row, command, color=drawing.INK, alpha=0.5)
        axes.barh(row, training, color=DEVICE_COLOURS[0])
        axes.text(command, row, f"  {command:.1f} s", va="center")
    axes.set_yticks(range(len(way)), [change["words"] for change in way])
    axes.invert_yaxis()
    axes.set_xlabel("seconds of the command; blue: of training")
