"""The pictures of lesson 12."""

import drawing
import matplotlib.pyplot as plt

STAGES = {
    "all-reduce": ("forward, backward", "all-reduce g", "update w, m"),
    "ZeRO-1": ("forward, backward", "reduce-scatter g", "update 1/N", "all-gather w"),
    "ZeRO-3": ("gather, forward\nlayer by layer", "gather, backward\nlayer by layer", "reduce-scatter g", "update 1/N"),
}


def zero_over_time() -> None:
    """What a device does during a step, from left to right."""
    axes = drawing.canvas(24, 5.4)
    for row, (name, stages) in enumerate(STAGES.items()):
        left, y = 3.4, 0.5 + 1.6 * row
        axes.text(0, y + 0.55, name, weight="bold", va="center")
        for stage in stages:
            width = 3.2 + 0.16 * max(len(line) for line in stage.split("\n"))
            if name == "all-reduce" and stage == "forward, backward":
                width = 5.9
            if name == "ZeRO-1" and stage == "forward, backward":
                width = 5.9
            device = 1 if any(word in stage for word in ("reduce", "gather")) else 0
            drawing.box(axes, left, y, stage, device=device, width=width - 0.4, height=1.1)
            left += width
    axes.text(3.4, 5.2, "time \u2192    (orange: communication)")


def bytes_on_a_device(rows) -> None:
    """A bar for each way of keeping the state.

    Args:
        rows: name to MB of (parameters, optimizer state, what exists only during the step) on one device.
    """
    _, axes = plt.subplots()
    left = [0.0] * len(rows)
    for number, label in enumerate(("parameters", "optimizer state", "during the step")):
        widths = [each[number] for each in rows.values()]
        axes.barh(list(rows), widths, left=left, color=drawing.DEVICE_COLOURS[number], label=label)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.set_xlabel("MB on one device (mlp, Adam, 64 examples, 8 devices)")
    axes.invert_yaxis()
    axes.legend()
