"""Pictures of lesson 07."""

import drawing
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgba


def sums_and_counts() -> None:
    """Four examples on two devices: values and padding, sums and counts, an all-reduce, one mean."""
    axes = drawing.canvas(14, 5)
    rows = [["1", "2", "3"], ["7", "pad", "pad"]]
    for d, top in enumerate([0.9, 3.1]):
        axes.text(0, top - 0.3, f"device {d}: values [b] = [3]", color=drawing.INK)
        for column, text in enumerate(rows[d]):
            drawing.box(axes, 1.1 * column, top, text, device=None if text == "pad" else d, width=1)
        drawing.arrow(axes, (3.4, top + 0.4), (4.3, top + 0.4), device=d)
        drawing.box(axes, 4.4, top, ["sum 6, count 3", "sum 7, count 1"][d], device=d, width=3.0)
        drawing.arrow(axes, (7.5, top + 0.4), (8.4, [2.1, 2.7][d]), device=d)
        drawing.arrow(axes, (11.2, [2.1, 2.7][d]), (12.0, top + 0.4), device=d)
        drawing.box(axes, 12.1, top, "13 / 4", device=d, width=1.7)
    drawing.box(axes, 8.5, 1.9, "psum:\n13 and 4", width=2.6, height=1.0)
    plt.show()


def masks(of_schemes: dict[str, dict[int, np.ndarray]]) -> None:
    """Which activations are kept: a row of pictures for each scheme, a column for each number of devices.

    Args:
        of_schemes: name of a scheme to {N: bool `[examples, activations]`}; kept ones are drawn in the device's colour.
    """
    counts = list(next(iter(of_schemes.values())))
    _, grid = plt.subplots(len(of_schemes), len(counts), figsize=(7, 4.6), layout="constrained")
    for row, (name, of_counts) in zip(grid, of_schemes.items(), strict=True):
        for axes, (N, mask) in zip(row, of_counts.items(), strict=True):
            picture = np.zeros((*mask.shape, 4))  # transparent where an activation is dropped
            for example, kept in enumerate(mask):
                picture[example, kept] = to_rgba(drawing.DEVICE_COLOURS[example * N // len(mask)])
            axes.imshow(picture, aspect="auto")
            axes.set(xticks=[], yticks=[])
            axes.set_title(f"{name}, N = {N}", fontsize=9)
    grid[len(of_schemes) // 2, 0].set_ylabel("8 examples, one a row")
    plt.show()
