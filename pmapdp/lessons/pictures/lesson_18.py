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
def roofline(b: np.ndarray, attainable: np.ndarray) -> None:
    """Attainable speed against examples: it rises in proportion up to 166 examples, limited by memory, and is flat at 156 TFLOP/s from there."""
    corner, speed = b[np.argmax(attainable)], attainable / 1e12
    for device, part in ((1, b <= corner), (0, b >= corner)):
        plt.plot(b[part], speed[part], color=drawing.DEVICE_COLOURS[device], linewidth=3)
    plt.plot(corner, speed.max(), "o", color=drawing.INK)
    plt.text(corner, 200, f"{corner} examples", ha="center")
    plt.text(7, 3, "memory is the limit", color=drawing.DEVICE_COLOURS[1])
    plt.text(300, 90, "arithmetic is the limit", color=drawing.DEVICE_COLOURS[0])
    plt.gca().set(xscale="log", yscale="log", xlabel="examples on one A100", ylabel="TFLOP/s at most", ylim=(0.8, 400))
    plt.xticks(4.0 ** np.arange(7), ("1", "4", "16", "64", "256", "1,024", "4,096"))
    plt.yticks((1, 10, 100), ("1", "10", "100"))
    plt.minorticks_off()


@drawing.picture
def overlap() -> None:
    """Above, one all-reduce of all gradients follows the backward pass. Below, each layer's gradient is sent while the next layer computes, and the update starts earlier."""
    axes = drawing.canvas(26, 8.2)
    after, during = {15.8: ("sum 3, 2, 1", 5.6)}, {10 + 2.9 * n: (f"sum {3 - n}", 2.4) for n in range(3)}
    for top, sums, update, title in ((0.9, after, 21.5, "average_gradients"), (5.2, during, 18.3, "average_loss")):
        axes.text(3.6, top - 0.4, title, va="center", family="monospace")
        work = {3.6: ("forward", 3.4), update: ("update", 3)}
        work |= {7.1 + 2.9 * n: (f"back {3 - n}", 2.8) for n in range(3)}
        for device, (name, pieces) in enumerate({"computes": work, "sends": sums}.items()):
            axes.text(0, top + 1.5 * device + 0.5, name, va="center")
            for left, (text, width) in pieces.items():
                drawing.box(axes, left, top + 1.5 * device, text, device=device, width=width, height=1)


@drawing.picture
def updates_of_an_h200() -> None:
    """An update on an H200 in a training loop: with 64 examples 0.11 of 0.72 ms are work, with 4,096 examples 1.59 of 1.67 ms."""
    work, loop = np.array([0.113, 1.59]), np.array([0.72, 1.67])  # a scan of twenty updates, data on the GPU; the loop
    _, axes = plt.subplots(figsize=(7, 1.6))
    axes.barh((0, 1), work, color=drawing.DEVICE_COLOURS[0], label="the GPU works")
    axes.barh((0, 1), loop - work, left=work, color="none", edgecolor=drawing.INK, label="it waits for the host")
    for row, total in enumerate(loop):
        axes.text(total + 0.02, row, f"{work[row]:.2f} of {total:.2f} ms", va="center")
    axes.set(yticks=(0, 1), yticklabels=("64 examples", "4,096 examples"), xlabel="ms an update", xlim=(0, 2.2))
    axes.invert_yaxis()
    drawing.legend_beside(axes)


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
