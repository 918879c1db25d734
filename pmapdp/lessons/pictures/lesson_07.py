"""Pictures of lesson 07."""

import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def sums_and_counts() -> None:
    """Device 0 has 1, 2, 3: sum 6, count 3. Device 1 has 7 and padding: sum 7, count 1. pmean gives both 6.5 and 2, so 3.25."""
    axes = drawing.canvas(14.6, 4.2)
    rows = [["1", "2", "3"], ["7", "pad", "pad"]]
    for d, top in enumerate([0.6, 2.8]):
        axes.text(0, top - 0.3, f"device {d}")
        for column, text in enumerate(rows[d]):
            drawing.box(axes, 1.1 * column, top, text, device=None if text == "pad" else d, width=1)
        drawing.arrow(axes, (3.3, top + 0.4), (4.2, top + 0.4), device=d)
        drawing.box(axes, 4.3, top, ["sum 6, count 3", "sum 7, count 1"][d], device=d, width=3.2)
        drawing.arrow(axes, (7.5, top + 0.4), (8.3, [1.8, 2.4][d]), device=d)
        drawing.arrow(axes, (11.2, [1.8, 2.4][d]), (12.0, top + 0.4), device=d)
        drawing.box(axes, 12.0, top, "6.5 / 2 = 3.25", device=d, width=2.6, size=9)
    drawing.box(axes, 8.3, 1.5, "pmean:\n6.5 and 2", width=2.9, height=1.2)


@drawing.picture
def all_reduces() -> None:
    """Three all-reduces across all devices: the moments in the forward pass, their gradients in the backward pass, all gradients at the end."""
    axes = drawing.canvas(26, 6, inches=7.8)
    steps = {2.6: "hidden", 9.0: "norm, output,\nloss, and back", 16.6: "back to\nhidden", 23.4: "update"}
    reduces = {5.8: "sums and\ncount", 13.2: "their\ngradients", 20.2: "gradients,\ncount"}
    for d in range(4):
        y = 1.0 + 1.2 * d
        axes.text(0, y + 0.5, f"device {d}", va="center")
        for x, text in steps.items():
            width = 3.6 if x == 9.0 else 2.6
            drawing.box(axes, x, y, text, device=d, width=width, height=1.0, size=8)
            for start in (x - 0.6, x + width):
                if 5 < start < 23.4:
                    drawing.arrow(axes, (start, y + 0.5), (start + 0.6, y + 0.5), device=d)
    for number, (x, text) in enumerate(reduces.items()):
        drawing.box(axes, x, 0.9, f"{number + 1}.\nall-\nreduce:\n{text}", width=2.6, height=4.8, size=8)


@drawing.picture
def running_means(local: np.ndarray, synchronized: np.ndarray) -> None:
    """Eight curves, one a device, of a running mean drift apart from update to update; the synchronized one runs through their middle.

    Both are `[updates, N]`: `local` of a layer without its all-reduce, `synchronized` with it.
    """
    drawing.curves_by_device(local, synchronized[:, 0], "synchronized", "running mean\nof one unit")
