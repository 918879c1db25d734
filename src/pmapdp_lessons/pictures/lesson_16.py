"""The pictures of lesson 16."""

import matplotlib.pyplot as plt

from pmapdp_lessons import drawing

# (text, width, whether it communicates) of each stage of a step.
STAGES = {
    "all-reduce": (("forward, backward", 10.8, 0), ("all-reduce", 6.2, 1), ("update w, m", 8, 0)),
    "ZeRO-1": (
        ("forward, backward", 10.8, 0),
        ("reduce-scatter", 8.4, 1),
        ("update 1/N", 7.4, 0),
        ("all-gather", 6.2, 1),
    ),
    "ZeRO-3": (
        ("gather, forward", 9, 1),
        ("gather, backward", 9.6, 1),
        ("reduce-scatter", 8.4, 1),
        ("update 1/N", 7.4, 0),
    ),
}


def zero_over_time() -> None:
    """What a device does during a step, from left to right."""
    axes = drawing.canvas(42, 8)
    for row, (name, stages) in enumerate(STAGES.items()):
        left, y = 7, 0.3 + 2.2 * row
        axes.text(0, y + 0.8, name, weight="bold", va="center")
        for text, width, communicates in stages:
            drawing.box(axes, left, y, text, device=communicates, width=width - 0.2, height=1.7)
            left += width
    axes.text(7, 7.6, "time \u2192 (orange: with communication; ZeRO-3 gathers layer by layer)")


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
