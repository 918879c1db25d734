"""Pictures of lesson 04."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def dot_products(results: np.ndarray) -> None:
    """Each of eight devices gets a row of xs and a row of ys, and computes one number of the result, their dot product.

    `results` are `[8]`.
    """
    axes = drawing.canvas(18.9, 5.4)
    for row, label in enumerate(["xs [8, 10]", "ys [8, 10]", "", "result [8]"]):
        axes.text(0.1, 0.6 + 1.4 * row, label, va="center")
    for d, result in enumerate(results):
        left = 3.3 + 1.95 * d
        drawing.box(axes, left, 0.2, f"x[{d}]", device=d, width=1.7)
        drawing.box(axes, left, 1.6, f"y[{d}]", device=d, width=1.7)
        drawing.arrow(axes, (left + 0.85, 2.45), (left + 0.85, 4.35), device=d)
        axes.text(left + 1.0, 3.3, "dot", va="center")
        drawing.box(axes, left, 4.4, f"{result:.0f}", device=d, width=1.7)


@drawing.picture
def mesh_and_specs() -> None:
    """A mesh of eight devices. With the spec "data", row d of an array is on device d; with an empty spec, all is on each."""
    axes = drawing.canvas(24, 8.4, inches=7.4)
    axes.text(0, 0.6, 'Mesh, axis "data"', va="center")
    for d in range(8):
        drawing.box(axes, 7.0 + 2.1 * d, 0.2, f"{d}", device=d, width=1.95)
    axes.text(0, 2.7, 'PartitionSpec("data")\narray [8, 10]:\nrow d is on device d', va="center")
    for d in range(8):
        drawing.box(axes, 7.0 + 2.1 * d, 2.0, f"row {d}\n[1,10]", device=d, width=1.95, height=1.4)
        drawing.arrow(axes, (7.98 + 2.1 * d, 1.05), (7.98 + 2.1 * d, 1.95), device=d)
    axes.text(0, 6.5, "PartitionSpec()\narray [10]:\nreplicated", va="center")
    for d in range(8):
        drawing.box(axes, 7.0 + 2.1 * d, 5.8, "all\n[10]", device=d, width=1.95, height=1.4)


@drawing.picture
def classes_by_device(classes: np.ndarray) -> None:
    """Ten bars, one a class, each stacked from the points that the eight devices put into this class, in the devices' colours.

    `classes` are `[8, b]`.
    """
    bottom = np.zeros(10)
    for d, found in enumerate(classes):
        counts = np.bincount(found, minlength=10)
        plt.bar(range(10), counts, bottom=bottom, color=drawing.DEVICE_COLOURS[d], label=f"device {d}")
        bottom += counts
    plt.gca().set(xlabel="class", ylabel="points", xticks=range(10))
    plt.legend(loc="center left", bbox_to_anchor=(1, 0.5))
