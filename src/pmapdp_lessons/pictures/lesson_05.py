"""Pictures of lesson 05."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp_lessons import drawing


def data_parallel_step() -> None:
    """A global batch of 64 images on eight devices: split, gradients, all-reduce, update."""
    axes = drawing.canvas(18.9, 8.6)
    for row, label in {0.6: "batch", 2.2: "split", 4.0: "gradient", 5.9: "all-reduce", 7.6: "update"}.items():
        axes.text(0, row, label, va="center")
    drawing.box(axes, 3.0, 0.2, "images [64, 28, 28, 1]", width=15.6)
    drawing.box(axes, 3.0, 5.4, "pmean: the average of the eight gradients, on every device", width=15.6, height=1.0)
    for d in range(8):
        left = 3.0 + 1.98 * d
        drawing.box(axes, left, 1.7, f"rows\n{8 * d}-{8 * d + 7}", device=d, width=1.75, height=1.1)
        drawing.box(axes, left, 3.5, f"g{d}", device=d, width=1.75, height=0.9)
        drawing.box(axes, left, 7.2, "new w", device=d, width=1.75, height=0.9)
        for start, end in ((1.0, 1.7), (2.8, 3.5), (4.4, 5.4), (6.4, 7.2)):
            drawing.arrow(axes, (left + 0.87, start), (left + 0.87, end), device=d)
    plt.show()


def drift(distances: np.ndarray, with_pmean: float) -> None:
    """How far each device's parameters are from those of one device, after every update.

    Args:
        distances: `[updates, N]`, without an all-reduce.
        with_pmean: the distance at the end of the right program.
    """
    updates, N = distances.shape
    for d in range(N):
        plt.plot(range(1, updates + 1), distances[:, d], color=drawing.DEVICE_COLOURS[d], label=f"device {d}")
    plt.axhline(with_pmean, color=drawing.INK, linestyle="--", label="with pmean")
    plt.gca().set(xlabel="update", ylabel="distance from one device", xticks=range(0, updates + 1, 5))
    plt.legend(loc="center left", bbox_to_anchor=(1, 0.5))
    plt.show()


def overlap() -> None:
    """Two steps in time: an all-reduce after the backward pass, and one in buckets during it."""
    axes = drawing.canvas(20.6, 7.0)
    layers = ("layer 3", "layer 2", "layer 1")
    for top, name in ((0.2, "one after\nthe other"), (3.8, "overlapped")):
        late = top < 1
        axes.text(0, top + 1.4, name, va="center")
        for number, layer in enumerate(layers):
            drawing.box(axes, 3.4 + 2.6 * number, top, f"grad of\n{layer}", device=0, width=2.5, height=1.3)
            start = 11.2 + 2.2 * number if late else 6.0 + 2.6 * number
            drawing.box(axes, start, top + 1.5, f"reduce\n{layer}", width=2.0, height=1.3)
        drawing.box(axes, 17.8 if late else 13.3, top, "update", device=0, width=2.0, height=1.3)
    axes.annotate("", (20.5, 6.9), (3.4, 6.9), arrowprops={"arrowstyle": "-|>", "color": drawing.INK})
    axes.text(1.8, 6.9, "time", va="center")
    plt.show()
