"""Pictures of lesson 18, and a clock."""

import json
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


def fastest_run(train: Callable[..., Any], *arguments: Any) -> float:
    """Seconds of the fastest of 50 calls, each until its result is there."""

    def run() -> None:
        jax.block_until_ready(train(*arguments))

    run()  # compiles
    return min(timeit.repeat(run, number=1, repeat=50))


@drawing.picture
def three_durations() -> None:
    """Over time, Python traces, compiles, calls and waits, and then calls and waits again, while a device runs a step after each call. A clock can see the first call with its wait, the second call alone, or the second call with its wait."""
    axes = drawing.canvas(24, 5.4)
    rows = {
        "Python": [
            (2.6, "trace", 2.2),
            (4.8, "compile", 4.6),
            (9.4, "call", 1.4),
            (10.8, "wait", 3.4),
            (14.2, "call", 1.4),
            (15.6, "wait", 3.4),
        ],
        "a device": [(10.8, "step", 3.4), (15.6, "step", 3.4)],
    }
    for row, (name, pieces) in enumerate(rows.items()):
        axes.text(-0.9, 1.6 + 1.5 * row, name, va="center", weight="bold")
        for left, text, width in pieces:
            drawing.box(
                axes,
                left,
                1.2 + 1.5 * row,
                text,
                device=0 if row else None,
                width=width - 0.1,
            )
    spans = (
        (0.6, 2.6, 14.2, "first call, with wait"),
        (4.2, 14.2, 15.6, "second call, without wait"),
        (5, 14.2, 19, "second call, with wait"),
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
    """A recorded trace of three updates of pmapdp's CNN. Each takes 1.5 ms: the host places a batch and calls the step, and the GPU computes for 0.12 ms and waits.

    The CNN of benchmarks/accelerators.py under jit, with jax 0.11.2. Kernels of one kind
    that follow each other are one bar.
    """
    trace = json.loads(Path(__file__).with_name("h200.json").read_text())
    ((title, rows),) = trace.items()  # [start, microseconds] of each bar
    _, axes = plt.subplots(figsize=(7, 1.3))
    for row, (name, bars) in enumerate(rows.items()):
        is_host = name.startswith("host")
        colour = drawing.INK if is_host else drawing.DEVICE_COLOURS[0]
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


Ranges = list[tuple[float, float]]  # speed-up without and with overlap, by device count


@drawing.picture
def speedup_by_devices(
    counts: list[int],
    weak: dict[str, Ranges],
    strong: dict[str, Ranges],
) -> None:
    """Speed-up from 1 to 64 devices, in two diagrams. On the left each device has a whole batch: ResNet-50 follows the ideal line, and your network falls behind it, to between 15 and 17. On the right all share one batch: ResNet-50 reaches 46 to 64, and your network gains a little with a few devices at best, and with 64 it's slower than one. Where your all-reduce takes longer than computing, the background is violet."""
    titles = (
        "weak scaling: a batch on each device",
        "strong scaling: one batch in all",
    )
    _, panels = plt.subplots(1, 2, figsize=(8, 3.4), sharey=True)
    for axes, title, networks in zip(panels, titles, (weak, strong), strict=True):
        axes.plot(counts, counts, ":", color=drawing.INK)
        plot_range(axes, counts, networks["ResNet-50 on A100s"], "--", drawing.INK)
        plot_range(axes, counts, networks["your network"], "-", drawing.ACCENT)
        shade_from_half_speed(axes, counts, networks["your network"])
        axes.set_title(title, size=10)
        axes.set(xlabel="devices", ylim=(0.05, 110))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(counts, [f"{count}" for count in counts])
        axes.set_yticks([0.25, 1, 4, 16, 64], ["1/4", "1", "4", "16", "64"])
    panels[0].set_ylabel("times as fast as one")
    panels[0].text(28, 50, "ideal, and ResNet-50", ha="right", size=9)
    panels[1].text(64, 12, "ResNet-50", ha="right", size=9)
    for axes, y in zip(panels, (2.7, 0.9), strict=True):
        yours = {"ha": "right", "size": 9, "color": drawing.ACCENT}
        axes.text(64, y, "your network", **yours)


def plot_range(axes, counts, pairs: Ranges, dashes: str, colour: str) -> None:
    """Plot a line without overlap, and a band up to full overlap."""
    low, high = np.transpose(pairs)
    axes.plot(counts, low, dashes, color=colour)
    axes.fill_between(counts, low, high, color=colour, alpha=0.25, lw=0)


def shade_from_half_speed(axes, counts, pairs: Ranges) -> None:
    """Shade the counts at which the all-reduce takes longer than the computing.

    Without overlap, that's where the speed-up is less than half of the ideal.
    """
    low, _ = np.transpose(pairs)
    below_half = np.log2(counts / (2 * low))
    start = 2 ** np.interp(0, below_half, np.log2(counts))
    axes.axvspan(start, counts[-1], color=drawing.ACCENT, alpha=0.1, lw=0)
    text = "your all-reduce takes\nlonger than computing"
    axes.text(counts[-1], 0.06, text, ha="right", size=8)


@drawing.picture
def predicted_against_found(runs: dict[str, tuple[float, float, float]]) -> None:
    """Three published runs: a bar from the efficiency without overlap to 100 %, and a dot for what was found. The dot is a little below the bar for the A100s in TF32 (97 %), far below it in mixed precision (84 %), and on it for the P100s (90 %).

    `runs`: without overlap, with full overlap, and found, by name.
    """
    _, axes = plt.subplots(figsize=(7, 2.3))
    for row, (low, high, found) in enumerate(runs.values()):
        is_first = row == 0
        bar_label = "predicted, no overlap to full overlap" if is_first else None
        axes.barh(
            row,
            max(high - low, 0.002),  # a bar that one can see
            height=0.4,
            left=low,
            color=drawing.INK,
            alpha=0.5,
            label=bar_label,
        )
        dot_label = "found" if is_first else None
        axes.plot(found, row, "o", color=drawing.ACCENT, label=dot_label)
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
