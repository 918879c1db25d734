"""Pictures of lesson 05."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def data_parallel_step() -> None:
    """A batch of 128 rows is split over eight devices. Each has a gradient and a count; pmean averages both; each updates its model."""
    axes = drawing.canvas(18.9, 8.2)
    for row, label in {
        0.4: "batch",
        2.05: "split:\n[8, 16, 64]",
        3.85: "gradient,\ncount",
        5.7: "all-reduce",
        7.6: "update",
    }.items():
        axes.text(0, row, label, va="center")
    drawing.box(
        axes, 3.0, 0, "inputs [128, 64], labels [128], weights [128]", width=15.6
    )
    drawing.box(
        axes,
        3.0,
        5.2,
        "pmean: the average gradient and count, on every device",
        width=15.6,
        height=1.0,
    )
    for d in range(8):
        left = 3.0 + 1.98 * d
        drawing.box(
            axes,
            left,
            1.5,
            f"rows\n{16 * d}-{16 * d + 15}",
            device=d,
            width=1.75,
            height=1.1,
            size=8,
        )
        drawing.box(axes, left, 3.4, f"g{d}, n{d}", device=d, width=1.75, height=0.9)
        drawing.box(axes, left, 7.1, "model", device=d, width=1.75, height=0.9)
        for start, end in ((0.8, 1.5), (2.6, 3.4), (4.3, 5.2), (6.2, 7.1)):
            drawing.arrow(axes, (left + 0.87, start), (left + 0.87, end), device=d)


@drawing.picture
def loss_curves(one_device: Sequence[float], eight_devices: Sequence[float]) -> None:
    """Above, two curves of the loss over 40 updates lie on top of each other; below, they differ by less than a millionth."""
    figure, (above, below) = plt.subplots(
        2, 1, sharex=True, figsize=(7, 3.6), height_ratios=(2, 1)
    )
    updates = range(1, len(one_device) + 1)
    above.plot(
        updates,
        one_device,
        color=drawing.ACCENT,
        alpha=0.4,
        linewidth=6,
        label="one device",
    )
    above.plot(
        updates, eight_devices, color=drawing.INK, linewidth=1.5, label="eight devices"
    )
    above.set(ylabel="loss", ylim=(0, None))
    above.legend()
    below.bar(
        updates, np.abs(np.subtract(one_device, eight_devices)), color=drawing.INK
    )
    below.set(xlabel="update", ylabel="difference", ylim=(0, 1e-6))
    figure.align_ylabels()


@drawing.picture
def drift(without: np.ndarray, with_pmean: np.ndarray) -> None:  # [updates, N]
    """Eight curves, one a device, of the same weight: they fan out from update to update; with pmean all eight are one curve."""
    drawing.curves_by_device(without, with_pmean[:, 0], "with pmean", "one weight")
