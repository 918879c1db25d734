"""Pictures of lesson 07."""

import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def sums_and_counts() -> None:
    """Device 0 has 1, 2, 3: sum 6, count 3. Device 1 has 7 and padding: sum 7, count 1. pmean gives both 13 / 2 and 4 / 2, so 13 / 4 = 3.25."""
    axes = drawing.canvas(14.6, 4.2)
    rows = [["1", "2", "3"], ["7", "pad", "pad"]]
    for d, top in enumerate([0.6, 2.8]):
        axes.text(0, top - 0.3, f"device {d}")
        for column, text in enumerate(rows[d]):
            drawing.box(
                axes,
                1.1 * column,
                top,
                text,
                device=None if text == "pad" else d,
                width=1,
            )
        drawing.arrow(axes, (3.3, top + 0.4), (4.2, top + 0.4), device=d)
        drawing.box(
            axes, 4.3, top, ["sum 6, count 3", "sum 7, count 1"][d], device=d, width=3.2
        )
        drawing.arrow(axes, (7.5, top + 0.4), (8.3, [1.8, 2.4][d]), device=d)
        drawing.arrow(axes, (11.2, [1.8, 2.4][d]), (12.0, top + 0.4), device=d)
        drawing.box(axes, 12.0, top, "13 / 4 = 3.25", device=d, width=2.6, size=9)
    drawing.box(axes, 8.3, 1.5, "pmean:\n13/2 and 4/2", width=2.9, height=1.2)


@drawing.picture
def all_reduces() -> None:
    """Three all-reduces across all devices: the moments in the forward pass, their gradients in the backward pass, all gradients at the end."""
    axes = drawing.canvas(33.8, 6.8, inches=9.6)
    texts = (
        "hidden",
        "sums and\ncount",
        "norm, output,\nloss, backward",
        "their\ngradients",
        "hidden,\nbackward",
    )
    widths, left, gap = (2.9, 3.9, 4.9, 3.9, 3.3, 3.9, 2.7), 2.8, 0.9
    for number, (text, width) in enumerate(
        zip((*texts, "gradients,\ncount", "update"), widths, strict=True)
    ):
        if number % 2:
            drawing.box(
                axes,
                left,
                0,
                f"all-reduce {number // 2 + 1}:\n{text}",
                width=width,
                height=6.7,
                size=9,
            )
        for d, y in enumerate((0, 1.75, 3.5, 5.25)):
            if number == 0:
                axes.text(0, y + 0.75, f"device {d}", va="center", size=9)
            if number % 2 == 0:
                drawing.box(
                    axes, left, y, text, device=d, width=width, height=1.45, size=9
                )
            if text != "update":
                drawing.arrow(
                    axes,
                    (left + width, y + 0.72),
                    (left + width + gap, y + 0.72),
                    device=d,
                )
        left += width + gap


@drawing.picture
def running_means(local: np.ndarray, synchronized: np.ndarray) -> None:
    """Eight curves, one a device, of a running mean drift apart from update to update; the synchronized one runs through their middle.

    Both are `[updates, N]`: `local` of a layer without its all-reduce, `synchronized`
    with it.
    """
    drawing.curves_by_device(
        local, synchronized[:, 0], "synchronized", "running mean\nof one unit"
    )
