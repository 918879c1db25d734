"""Pictures of lesson 08."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgba

from pmapdp.lessons import drawing


@drawing.picture
def masks(of_schemes: dict[str, dict[int, np.ndarray]]) -> None:
    """Masks of eight examples, for three ways to choose keys on 1, 2 and 4 devices; a key per example gives equal masks.

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
            axes.spines[:].set_visible(True)
            axes.set_title(f"{name}, N = {N}", fontsize=9)
    grid[len(of_schemes) // 2, 0].set_ylabel("8 examples, one a row")
    grid[-1, len(counts) // 2].set_xlabel("12 activations, one a column")
