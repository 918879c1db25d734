"""Pictures of lesson 04."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def dot_products(results: np.ndarray) -> None:  # [8]
    """Each of eight devices gets a row of xs and a row of ys, and computes one number of the result, their dot product."""
    axes = drawing.canvas(18.9, 5.4)
    for row, label in enumerate(["xs [8, 10]", "ys [8, 10]", "", "result [8]"]):
        axes.text(0.1, 0.6 + 1.4 * row, label, va="center")
    rows = {0.2: [f"x[{d}]" for d in range(8)], 1.6: [f"y[{d}]" for d in range(8)], 4.4: [f"{r:.0f}" for r in results]}
    for top, texts in rows.items():
        drawing.device_row(axes, 3.3, top, texts, step=1.95, width=1.7)
    for d in range(8):
        middle = 4.15 + 1.95 * d
        drawing.arrow(axes, (middle, 2.45), (middle, 4.35), device=d)
        axes.text(middle + 0.15, 3.3, "dot", va="center")


@drawing.picture
def mesh_and_specs() -> None:
    """A mesh of eight devices. With the spec "data", row d of an array is on device d; with an empty spec, all is on each."""
    axes = drawing.canvas(24, 8.4, inches=7.4)
    rows = (
        (0.6, 'Mesh, axis "data"', "{d}", 0.8),
        (2.7, 'PartitionSpec("data")\narray [8, 10]:\nrow d is on device d', "row {d}\n[1,10]", 1.4),
        (6.5, "PartitionSpec()\narray [10]:\nreplicated", "all\n[10]", 1.4),
    )
    for middle, label, text, height in rows:
        axes.text(0, middle, label, va="center")
        texts = [text.format(d=d) for d in range(8)]
        drawing.device_row(axes, 7.0, middle - height / 2, texts, step=2.1, width=1.95, height=height)
    for d in range(8):
        drawing.arrow(axes, (7.98 + 2.1 * d, 1.05), (7.98 + 2.1 * d, 1.95), device=d)


@drawing.picture
def classes_by_device(classes: list[np.ndarray]) -> None:  # of each device, [b]
    """Ten bars, one a class, each stacked from the points that the eight devices put into this class, in the devices' colours."""
    bottom = np.zeros(10)
    for d, found in enumerate(classes):
        counts = np.bincount(found, minlength=10)
        plt.bar(range(10), counts, bottom=bottom, color=drawing.DEVICE_COLOURS[d], label=f"device {d}")
        bottom += counts
    plt.gca().set(xlabel="class", ylabel="points", xticks=range(10))
    drawing.legend_beside(plt.gca())
