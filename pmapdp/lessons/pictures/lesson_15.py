"""Pictures of lesson 15. The layouts are read from JAX's shardings."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from jax.sharding import NamedSharding

from pmapdp.lessons import drawing

HEIGHT = 3.6  # of an array, so that the number of a device fits into an eighth of it


@drawing.picture
def layouts(layouts, shapes) -> None:
    """The arrays x, W1, h, W2 and y in two layouts: data splits the rows over eight devices, data and model rows over four and hidden units over two. A stack of cards is a shard that several devices hold.

    Args:
        layouts: name to a mesh and {name of an array: its `PartitionSpec`}, from the
            top down.
        shapes: name of an array to its shape `[rows, columns]`, from left to right.
    """
    axes = drawing.canvas(23.4, 9.1, inches=9)
    for row, (layout, (mesh, specs)) in enumerate(layouts.items()):
        top = 0.7 + 4.5 * row
        axes.text(
            0,
            top + HEIGHT / 2,
            layout.replace(" and ", "\nand "),
            weight="bold",
            va="center",
        )
        for column, (name, shape) in enumerate(shapes.items()):
            left, sharding = 4.1 + 3.9 * column, NamedSharding(mesh, specs[name])
            title = f"{name} {list(sharding.shard_shape(shape))}"
            axes.text(left + 1.6, top - 0.15, title, ha="center", fontsize=9)
            drawing.shards(axes, (left, top, 3.3, HEIGHT), shape, sharding)


@drawing.picture
def pair() -> None:
    """Two devices share a pair of matrices. Forward, an all-reduce after the second adds up y. Backward, one before the first adds up the gradient for x."""
    axes = drawing.canvas(24, 6.4)
    for d, y in enumerate((0.9, 3.1)):
        axes.text(0, y + 0.5, f"device {d}", va="center")
        for left, text, width in (
            (6.6, "columns\nof W1", 3.4),
            (11.2, "part of h", 2.6),
            (15.0, "rows\nof W2", 3.9),
        ):
            drawing.box(
                axes, left, y - 0.15, text, device=d, width=width, height=1.3, size=8
            )
        drawing.box(axes, 3.2, y, "x", device=d, width=1.6, height=1)
        drawing.box(axes, 21.6, y, "y", device=d, width=1.6, height=1)
        for start, end in ((4.8, 6.6), (10.0, 11.2), (13.8, 15.0), (18.9, 21.6)):
            drawing.arrow(axes, (start, y + 0.3), (end, y + 0.3), device=d)
            drawing.arrow(axes, (end, y + 0.7), (start, y + 0.7), device=d, dashed=True)
    for left, text in ((5.4, "all-reduce\nbackward"), (19.9, "all-reduce\nforward")):
        axes.plot(
            [left + 0.3] * 2, [0.6, 4.4], color=drawing.INK, linewidth=5, alpha=0.5
        )
        axes.text(left + 0.3, 5.2, text, ha="center", va="center", weight="bold")
    axes.text(
        12.8, 5.2, "forward \u2192, gradients \u2190 (dashed)", ha="center", va="center"
    )


@drawing.picture
def bytes_by_batch(
    sequences: Sequence[int], sent: dict[str, Sequence[int]]
) -> None:  # bytes
    """GB a layer of GPT-3 all-reduces in an update: constant for data parallelism, rising with the batch for tensor parallelism; they cross at 18 sequences, far below GPT-3's batch of 1,563."""
    axes = plt.gca()
    for colour, (name, sizes) in zip((1, 0), sent.items(), strict=True):
        colour = drawing.DEVICE_COLOURS[colour]
        axes.plot(sequences, np.divide(sizes, 1e9), "o-", color=colour, label=name)
    batch = 3.2e6 / 2_048
    axes.axvline(batch, color=drawing.INK, linestyle=":")
    axes.text(0.93 * batch, 3.2, "GPT-3's batch", ha="right")
    axes.set(xscale="log", yscale="log", ylabel="GB all-reduced")
    axes.set(xlabel="sequences of 2,048 tokens in a batch")
    axes.set_xticks((8, 18, 128, 2048), ("8", "18", "128", "2,048"))
    axes.set_yticks((10, 100), ("10", "100"))
    plt.minorticks_off()
    plt.legend()
