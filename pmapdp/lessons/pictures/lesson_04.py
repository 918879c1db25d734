"""Pictures of lesson 04."""

import jax
import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def dot_products(results: np.ndarray) -> None:  # [8]
    """Each of eight devices gets a row of xs and a row of ys, and computes one number of the result, their dot product."""
    axes = drawing.canvas(18.9, 5.4)
    for row, label in enumerate(["xs [8, 10]", "ys [8, 10]", "", "result [8]"]):
        axes.text(0.1, 0.6 + 1.4 * row, label, va="center")
    rows = {
        0.2: [f"x[{d}]" for d in range(8)],
        1.6: [f"y[{d}]" for d in range(8)],
        4.4: [f"{r:.0f}" for r in results],
    }
    for top, texts in rows.items():
        drawing.device_row(axes, 3.3, top, texts, step=1.95, width=1.7)
    for d in range(8):
        middle = 4.15 + 1.95 * d
        drawing.arrow(axes, (middle, 2.45), (middle, 4.35), device=d)
        axes.text(middle + 0.15, 3.3, "dot", va="center")


@drawing.picture
def mesh_and_specs() -> None:
    """A mesh of eight devices. With the spec "data", each device has a row of an array; with an empty spec, all of another."""
    axes = drawing.canvas(24, 6.2, inches=7.4)
    labels = (
        'rows [8, 10]\nPartitionSpec("data")',
        'mesh of 8 devices\naxis "data"',
        "w [10]\nPartitionSpec()",
    )
    for row, (label, text) in enumerate(
        zip(labels, ("row {d}", "{d}", "all of w"), strict=True)
    ):
        top = 0.2 + 2.2 * row
        axes.text(0, top + 0.6, label, va="center")
        texts = [text.format(d=d) for d in range(8)]
        drawing.device_row(
            axes, 6.6, top, texts, step=2.18, width=2.0, height=1.2, size=9
        )
    for d in range(8):
        middle = 7.6 + 2.18 * d
        drawing.arrow(axes, (middle, 1.4), (middle, 2.4), device=d)
        drawing.arrow(axes, (middle, 4.6), (middle, 3.6), device=d)


@drawing.picture
def last_batch(is_right: np.ndarray, weights: np.ndarray) -> None:  # [128], [128]
    """Sixteen rows for each of eight devices: a dot is a correct answer, a cross is a wrong one, and a dash is padding.

    Six devices have 16 points, device 6 has 8, and device 7 has none.
    """
    figure = plt.figure(figsize=(6, 2.8))
    device, column = np.divmod(np.arange(128), 16)
    colours = np.array(drawing.DEVICE_COLOURS)[device]
    for marker, chosen in {
        "o": weights * is_right,
        "x": weights * ~is_right,
        "$-$": 1 - weights,
    }.items():
        at = chosen > 0
        plt.scatter(column[at], device[at], 50, colours[at], marker, linewidths=2)
    sums = (weights * is_right).reshape(8, 16).sum(1), weights.reshape(8, 16).sum(1)
    names = [
        f"device {d}: {right:.0f} of {count:.0f}"
        for d, (right, count) in enumerate(zip(*sums, strict=True))
    ]
    figure.gca().set(xticks=[], yticks=range(8), yticklabels=names, ylim=(7.6, -0.6))


@drawing.picture
def one_label_for_eight_rows(
    array: jax.Array,
) -> None:  # [10], and another row on each device
    """Eight devices hold eight different rows. JAX calls the array replicated, and shows the one on device 0."""
    axes = drawing.canvas(20, 4.2)
    rows = [shard.data for shard in array.addressable_shards]
    shown = (
        f"print shows {rows[0][0]:.0f} to {rows[0][-1]:.0f}, and JAX says: replicated"
    )
    drawing.box(axes, 0, 0.1, shown, width=13, height=1.0)
    drawing.arrow(axes, (1.15, 2.6), (1.15, 1.15), device=0)
    texts = [f"{row[0]:.0f} to\n{row[-1]:.0f}" for row in rows]
    drawing.device_row(axes, 0, 2.6, texts, step=2.5, width=2.3, height=1.4)
