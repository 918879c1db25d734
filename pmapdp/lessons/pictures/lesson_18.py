"""Pictures of lesson 18."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def three_durations() -> None:
    """Over time, Python traces, compiles and calls, and a device runs two steps. A clock can see the first call with its step, dispatch, or a step."""
    axes = drawing.canvas(21, 5.4)
    rows = {
        "Python": (
            2.6,
            [("trace", 2.2), ("compile", 4.6), ("call", 1.4), ("call", 1.4)],
        ),
        "a device": (10.8, [("step", 3.4), ("step", 3.4)]),
    }
    for row, (name, (left, pieces)) in enumerate(rows.items()):
        axes.text(0.1, 1.6 + 1.5 * row, name, va="center", weight="bold")
        for text, width in pieces:
            drawing.box(
                axes,
                left,
                1.2 + 1.5 * row,
                text,
                device=0 if row else None,
                width=width - 0.1,
            )
            left += width
    spans = (
        (0.6, 2.6, 14.2, "first call"),
        (4.2, 10.8, 12.2, "without waiting"),
        (5, 14.2, 17.6, "a step"),
    )
    for y, start, end, name in spans:
        axes.annotate(
            "",
            (end, y),
            (start, y),
            arrowprops={"arrowstyle": "<->", "color": drawing.INK},
        )
        axes.text(end + 0.2, y, name, va="center")


@drawing.picture
def trace_of_an_h200() -> None:
    """A recorded trace of three updates of pmapdp's CNN. Each takes 1.5 ms: Python places and calls, and the GPU computes for 0.12 ms and waits.

    The CNN of benchmarks/accelerators.py under jit, with jax 0.11.2. Kernels of one kind
    that follow each other are one bar.
    """
    trace = json.loads(Path(__file__).with_name("h200.json").read_text())
    ((title, rows),) = trace.items()  # [start, microseconds] of each bar
    _, axes = plt.subplots(figsize=(7, 1.3))
    for row, (name, bars) in enumerate(rows.items()):
        is_python = name.startswith("Python")
        colour = drawing.INK if is_python else drawing.DEVICE_COLOURS[0]
        axes.broken_barh(np.array(bars) / 1000, (row - 0.4, 0.8), color=colour)
    axes.set(
        yticks=range(len(rows)),
        yticklabels=rows,
        title=title,
        xlim=(0, None),
        xlabel="ms",
    )
    axes.invert_yaxis()
    for middle in (1.74, 3.32):  # of the gaps between updates, in ms
        axes.text(middle, 2, "waits", ha="center", va="center")


@drawing.picture
def predicted_against_found(runs: dict[str, tuple[float, float, float]]) -> None:
    """Two published runs: a bar from the efficiency without overlap to 100 %, and a dot for what was found. The dot is far below the bar for the A100s (84 %), and on it for the P100s (90 %).

    `runs`: without overlap, with full overlap, and found, by name.
    """
    _, axes = plt.subplots(figsize=(7, 1.8))
    for row, (low, high, found) in enumerate(runs.values()):
        is_first = row == 0
        bar_label = "predicted, no overlap to full overlap" if is_first else None
        axes.barh(
            row,
            max(high - low, 0.002),  # a bar that one can see
            height=0.4,
            left=low,
            color=drawing.DEVICE_COLOURS[4],
            label=bar_label,
        )
        dot_label = "found" if is_first else None
        axes.plot(found, row, "o", color=drawing.DEVICE_COLOURS[5], label=dot_label)
        axes.text(found, row - 0.3, f"{found:.1%}", ha="center", va="bottom", size=8)
    axes.set_yticks(range(len(runs)), runs)
    axes.set(
        xlim=(0.8, 1.01),
        ylim=(len(runs) - 0.5, -0.8),
        xticks=(0.8, 0.9, 1),
        xlabel="speed of each GPU, compared with the smaller run",
    )
    axes.set_xticklabels(("80 %", "90 %", "100 %"))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=2)
