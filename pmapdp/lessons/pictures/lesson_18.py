"""Pictures of lesson 18."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def three_durations() -> None:
    """Over time, Python traces, compiles and calls, and a device runs two steps. A clock can see the first call with its step, dispatch, or a step."""
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
    spans = ((0.6, 2.6, 14.2, "first call"), (4.2, 10.8, 12.2, "without waiting"), (5, 14.2, 17.6, "a step"))
    for y, start, end, name in spans:
        axes.annotate("", (end, y), (start, y), arrowprops={"arrowstyle": "<->", "color": drawing.INK})
        axes.text(end + 0.2, y, name, va="center")


@drawing.picture
def roofline(b: np.ndarray, attainable: np.ndarray, peak: float) -> None:
    """Attainable speed against examples: it rises in proportion up to about 165 examples, limited by memory, and is flat at 156 TFLOP/s from there."""
    plt.plot(b, attainable / 1e12, "o-", color=drawing.DEVICE_COLOURS[0], markersize=4)
    plt.axhline(peak / 1e12, color=drawing.INK, linestyle=":")
    plt.axvline(165, color=drawing.INK, linestyle=":")
    plt.text(6, 12, "memory is the limit", rotation=27)
    plt.text(300, 90, "arithmetic is the limit")
    plt.gca().set(xscale="log", yscale="log", xlabel="examples on one A100", ylabel="TFLOP/s at most", ylim=(0.8, 300))
    plt.xticks(b[::2], [f"{each:.0f}" for each in b[::2]])
    plt.yticks((1, 10, 100), ("1", "10", "100"))
    plt.minorticks_off()


@drawing.picture
def overlap() -> None:
    """Above, one all-reduce of all gradients follows the backward pass. Below, each layer's gradient is sent while the next layer computes, and the update starts earlier."""
    axes = drawing.canvas(26, 7.4)
    after, during = {15.8: ("sum 3, 2, 1", 5.6)}, {10 + 2.9 * n: (f"sum {3 - n}", 2.4) for n in range(3)}
    for top, sums, update in ((0.2, after, 21.5), (4.0, during, 18.3)):
        work = {
            3.6: ("forward", 3.4),
            **{7.1 + 2.9 * n: (f"back {3 - n}", 2.8) for n in range(3)},
            update: ("update", 3),
        }
        for device, (name, pieces) in enumerate({"computes": work, "sends": sums}.items()):
            axes.text(0, top + 1.5 * device + 0.5, name, va="center")
            for left, (text, width) in pieces.items():
                drawing.box(axes, left, top + 1.5 * device, text, device=device, width=width, height=1)


@drawing.picture
def updates_of_an_h200() -> None:
    """Milliseconds of an update on an H200. Batch 64: the parts 0.57, the loop 0.72, twenty in one program 0.11. Batch 4,096: the parts 3.2, the loop 1.67, twenty in one program 1.59."""
    # Each part timed alone; the loop of the three; a scan of twenty updates, with the data on the GPU.
    measured = {64: ((0.004, 0.33, 0.231), 0.72, 0.113), 4096: ((0.39, 1.39, 1.43), 1.67, 1.59)}
    _, panels = plt.subplots(1, 2, figsize=(8.5, 2), layout="constrained")
    for axes, (batch, (parts, loop, scan)) in zip(panels, measured.items(), strict=True):
        for device, name in enumerate(("index", "device_put", "step")):
            place = {"left": sum(parts[:device]), "color": drawing.DEVICE_COLOURS[2 - device]}
            axes.barh(0, parts[device], **place, label=name)
        axes.barh((1, 2), (loop, scan), color="none", edgecolor=drawing.INK)
        for row, length in enumerate((sum(parts), loop, scan)):
            axes.text(1.02 * length, row, f" {length:.2f}", va="center")
        axes.set(title=f"batch {batch:,}", yticks=(), xlabel="ms an update", xlim=(0, 1.25 * max(sum(parts), loop)))
        axes.invert_yaxis()
    panels[0].set_yticks((0, 1, 2), ("one by one", "the loop", "twenty in\none program"))
    drawing.legend_beside(panels[1], fontsize=9)


@drawing.picture
def predicted_against_found(runs: dict[str, tuple[float, float]]) -> None:
    """Bars of efficiency for three published runs. Found: 90, 97 and 84 %. Predicted: 87.6, 99.8 and 99.4 %. Naive: 100 % each.

    `runs`: predicted and found, by name.
    """
    _, axes = plt.subplots(figsize=(7, 2.4))
    predicted, found = zip(*runs.values(), strict=True)
    series = {"naive": [1.0] * len(runs), "predicted": predicted, "found": found}
    for place, (colour, (name, values)) in enumerate(zip((7, 4, 0), series.items(), strict=True)):
        rows = np.arange(len(runs)) + 0.27 * (place - 1)
        axes.barh(rows, values, height=0.25, color=drawing.DEVICE_COLOURS[colour], label=name)
        for row, value in zip(rows, values, strict=True):
            axes.text(value + 0.005, row, f"{100 * value:.3g} %", va="center", size=8)
    axes.set_yticks(range(len(runs)), runs)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.1), xticks=(0, 0.5, 1), xlabel="speed of each GPU, compared with the smaller run")
    axes.set_xticklabels(("0", "50 %", "100 %"))
    drawing.legend_beside(axes)
