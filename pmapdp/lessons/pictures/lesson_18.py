"""Pictures of lesson 18."""

import gzip
import json
from collections import defaultdict
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
def roofline(b: np.ndarray, attainable: np.ndarray) -> None:
    """Attainable speed against examples: it rises in proportion up to 166 examples, limited by memory, and is flat at 156 TFLOP/s from there."""
    corner, speed = b[np.argmax(attainable)], attainable / 1e12
    for device, part in ((1, b <= corner), (0, b >= corner)):
        plt.plot(
            b[part], speed[part], color=drawing.DEVICE_COLOURS[device], linewidth=3
        )
    plt.plot(corner, speed.max(), "o", color=drawing.INK)
    plt.text(corner, 200, f"{corner} examples", ha="center")
    plt.text(7, 3, "memory is the limit", color=drawing.DEVICE_COLOURS[1])
    plt.text(300, 90, "arithmetic is the limit", color=drawing.DEVICE_COLOURS[0])
    plt.gca().set(
        xscale="log",
        yscale="log",
        xlabel="examples on one A100",
        ylabel="TFLOP/s at most",
        ylim=(0.8, 400),
    )
    plt.xticks(4.0 ** np.arange(7), ("1", "4", "16", "64", "256", "1,024", "4,096"))
    plt.yticks((1, 10, 100), ("1", "10", "100"))
    plt.minorticks_off()


@drawing.picture
def traces_of_an_h200() -> None:
    """Two recorded traces. The CNN's updates take 1.5 ms each: Python places and calls, and the GPU computes for 0.12 ms and waits. ResNet-18 computes without a gap: 2.1 ms forward, then 4.3 ms for gradients; 2.8 ms are no convolutions.

    The networks of benchmarks/accelerators.py under jit, with jax 0.11.2. Kernels of
    one kind that follow each other are one bar.
    """
    traces = json.loads(
        Path(__file__).with_name("h200.json").read_text()
    )  # [start, microseconds] of each bar
    _, panels = plt.subplots(
        2, figsize=(7, 3.4), gridspec_kw={"height_ratios": (3, 4), "hspace": 1}
    )
    for axes, (title, rows) in zip(panels, traces.items(), strict=True):
        for row, (name, bars) in enumerate(rows.items()):
            colour = (
                drawing.INK if name.startswith("Python") else drawing.DEVICE_COLOURS[0]
            )
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
        panels[0].text(middle, 2, "waits", ha="center", va="center")


@drawing.picture
def predicted_against_found(runs: dict[str, tuple[float, float]]) -> None:
    """Bars of efficiency for three published runs. Found: 90, 97 and 84 %. Predicted: 87.6, 99.8 and 99.4 %. Naive: 100 % each.

    `runs`: predicted and found, by name.
    """
    _, axes = plt.subplots(figsize=(7, 2.4))
    predicted, found = zip(*runs.values(), strict=True)
    series = {"naive": [1.0] * len(runs), "predicted": predicted, "found": found}
    for place, (colour, (name, values)) in enumerate(
        zip((7, 4, 0), series.items(), strict=True)
    ):
        rows = np.arange(len(runs)) + 0.27 * (place - 1)
        axes.barh(
            rows, values, height=0.25, color=drawing.DEVICE_COLOURS[colour], label=name
        )
        for row, value in zip(rows, values, strict=True):
            axes.text(value + 0.005, row, f"{100 * value:.3g} %", va="center", size=8)
    axes.set_yticks(range(len(runs)), runs)
    axes.invert_yaxis()
    axes.set(
        xlim=(0, 1.1),
        xticks=(0, 0.5, 1),
        xlabel="speed of each GPU, compared with the smaller run",
    )
    axes.set_xticklabels(("0", "50 %", "100 %"))
    drawing.legend_beside(axes)


def print_longest_operations(folder: Path, most: int = 5) -> None:
    """Print the compiled program's operations with the most time in the trace in a folder."""
    (trace,) = folder.glob("**/perfetto_trace.json.gz")
    with gzip.open(trace, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    milliseconds = defaultdict(list)
    for event in events:
        # Other events are Python calls and the runtime's own.
        if event.get("ph") == "X" and "hlo_op" in event.get("args", {}):
            milliseconds[event["name"]].append(event.get("dur", 0) / 1000)
    total = sum(sum(times) for times in milliseconds.values()) or 1
    longest = sorted(milliseconds.items(), key=lambda item: -sum(item[1]))
    for name, times in longest[:most]:
        time = sum(times)
        percent = 100 * time / total
        print(f"{time:10.2f} ms  {percent:4.1f} %  {len(times):6d} calls  {name}")
