"""Pictures of lesson 05."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def data_parallel_step() -> None:
    """A batch of 64 rows is split over eight devices. Each computes a gradient; pmean averages them; each updates its model."""
    axes = drawing.canvas(18.9, 8.2)
    for row, label in {0.4: "batch", 2.05: "split", 3.95: "gradient", 5.7: "all-reduce", 7.6: "update"}.items():
        axes.text(0, row, label, va="center")
    drawing.box(axes, 3.0, 0, "x [64, 64], y [64], weights [64]", width=15.6)
    drawing.box(axes, 3.0, 5.2, "pmean: the average of the eight gradients, on every device", width=15.6, height=1.0)
    for d in range(8):
        left = 3.0 + 1.98 * d
        drawing.box(axes, left, 1.5, f"rows\n{8 * d}-{8 * d + 7}", device=d, width=1.75, height=1.1)
        drawing.box(axes, left, 3.4, f"g{d}", device=d, width=1.75, height=0.9)
        drawing.box(axes, left, 7.1, "model", device=d, width=1.75, height=0.9)
        for start, end in ((0.8, 1.5), (2.6, 3.4), (4.3, 5.2), (6.2, 7.1)):
            drawing.arrow(axes, (left + 0.87, start), (left + 0.87, end), device=d)


@drawing.picture
def drift(distances: np.ndarray, with_pmean: float) -> None:
    """Eight curves, one a device, rise from update to update away from the parameters of one device; with pmean it stays 0.

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


@drawing.picture
def overlap() -> None:
    """Time runs to the right. Combined: one all-reduce of three layers after all gradients. By layer: three, during the others."""
    axes = drawing.canvas(20.6, 6.9)
    layers = ("layer 3", "layer 2", "layer 1")
    for top, name in ((0.0, "combined"), (3.4, "by layer")):
        late = top < 1
        axes.text(0, top + 0.65, name, va="center", weight="bold")
        axes.text(0, top + 2.15, "  all-reduce", va="center")
        for number, layer in enumerate(layers):
            drawing.box(axes, 4.2 + 2.6 * number, top, f"grad of\n{layer}", device=0, width=2.5, height=1.3)
            if not late:
                drawing.box(axes, 6.8 + 2.6 * number, top + 1.5, f"{layer}", width=2.0, height=1.3)
        if late:
            drawing.box(axes, 12.0, top + 1.5, "layers 3, 2 and 1", width=5.6, height=1.3)
        drawing.box(axes, 17.7 if late else 14.1, top, "update", device=0, width=2.0, height=1.3)
    axes.annotate("", (20.5, 6.8), (4.2, 6.8), arrowprops={"arrowstyle": "-|>", "color": drawing.INK})
    axes.text(2.2, 6.8, "time", va="center")
