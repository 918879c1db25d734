"""Pictures of lesson 18."""

import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


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


MESSAGES = {  # parts of its numbers that one of eight devices sends, message by message
    "ring": [1 / 8] * 14,
    "butterfly": [1] * 3,
    "halving": [1 / 2, 1 / 4, 1 / 8, 1 / 8, 1 / 4, 1 / 2],
}


@drawing.picture
def three_all_reduces() -> None:
    """The messages of one of eight devices over time, twice: a ring's 14 of an eighth of the bytes, a butterfly's 3 of all bytes, and halving and doubling's 6 of a half, a quarter, an eighth and back. With few bytes the butterfly ends first and the ring last. With many bytes halving ends first and the butterfly last."""
    titles = {"few bytes": (1, 0.25), "many bytes": (0.3, 4)}
    _, panels = plt.subplots(1, 2, figsize=(8, 1.6), sharey=True)
    for axes, (title, (latency, all_bytes)) in zip(panels, titles.items(), strict=True):
        for row, parts in enumerate(MESSAGES.values()):
            start = 0.0
            for part in parts:
                axes.barh(row, latency, 0.6, start, color=drawing.INK, alpha=0.5)
                start += latency
                width = part * all_bytes
                axes.barh(row, width, 0.6, start, color=drawing.DEVICE_COLOURS[0])
                start += width
        axes.set(title=title, xlabel="time", xticks=[], xlim=(0, 15))
    panels[0].set_yticks(range(len(MESSAGES)), list(MESSAGES))
    panels[0].invert_yaxis()


Ranges = list[tuple[float, float]]  # speed-up without and with overlap, by device count


@drawing.picture
def efficiency_by_devices(
    counts: list[int],
    weak: dict[str, Ranges],
    strong: dict[str, Ranges],
) -> None:
    """The speed of each of 1 to 64 devices, in percent of one alone, in two diagrams. On the left each device has a whole batch: ResNet-50 stays near 100 %, and your network falls. On the right all share one batch: ResNet-50 reaches 72 to 100 % with 64, and your network falls faster, toward a dotted curve where all devices together are as fast as one. A line at 50 % marks where the all-reduce takes as long as the computing."""
    titles = (
        "weak scaling: a batch on each device",
        "strong scaling: one batch in all",
    )
    _, panels = plt.subplots(1, 2, figsize=(8, 3.2), sharey=True)
    for axes, title, networks in zip(panels, titles, (weak, strong), strict=True):
        half = "the all-reduce takes as long as computing"
        axes.axhline(50, color=drawing.INK, lw=0.8, label=half)
        slow = 100 / np.array(counts)
        together = "all together are as fast as one"
        axes.plot(counts, slow, ":", color=drawing.INK, label=together)
        for name, colour in (
            ("ResNet-50 on A100s", drawing.DEVICE_COLOURS[0]),
            ("your network", drawing.ACCENT),
        ):
            low, high = 100 * np.transpose(networks[name]) / counts
            axes.plot(counts, low, color=colour, label=name)
            axes.fill_between(counts, low, high, color=colour, alpha=0.3, lw=0)
        axes.set_title(title, size=10)
        axes.set(xlabel="devices", ylim=(0, 104))
        axes.set_xscale("log", base=2)
        axes.set_xticks(counts, [f"{count}" for count in counts])
        axes.set_yticks([0, 25, 50, 75, 100], ["0", "25 %", "50 %", "75 %", "100 %"])
    panels[0].set_ylabel("speed of each device")
    panels[0].legend(loc="upper center", bbox_to_anchor=(1.05, -0.2), ncols=2)


@drawing.picture
def predicted_against_found(runs: dict[str, tuple[float, float, float]]) -> None:
    """Two published runs: a bar from the efficiency without overlap to 100 %, and a dot for what was found. The dot is a little below the bar for the A100s in TF32 (97 %), and far below it in mixed precision (84 %).

    `runs`: without overlap, with full overlap, and found, by name.
    """
    _, axes = plt.subplots(figsize=(7, 1.7))
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
        xlabel="speed of each GPU, compared with one alone",
    )
    axes.set_xticklabels(("80 %", "90 %", "100 %"))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.45), ncols=2)
