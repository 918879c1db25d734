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


@drawing.picture
def differences(losses: dict[tuple[str, int], np.ndarray]) -> None:  # [updates]
    """The difference of the loss on eight devices from one device's: about 1e-2 with a key per device, at most 1e-6 with a key per example."""
    for name, colour, dashes in (("device_keys", 5, "--"), ("example_keys", 0, "-")):
        apart = np.maximum(np.abs(losses[name, 8] - losses[name, 1]), 1e-9)  # equal losses have no logarithm
        plt.plot(range(1, len(apart) + 1), apart, dashes, color=drawing.DEVICE_COLOURS[colour], label=name)
    plt.gca().set(yscale="log", xlabel="update", ylabel="distance from\none device's loss")
    drawing.legend_beside(plt.gca())


@drawing.picture
def tokens(losses: np.ndarray, weights: np.ndarray) -> None:
    """Four sentences of 6, 2, 1 and 1 tokens in rows of six; the first two are on device 0, with loss 1, the others on device 1, with loss 3."""
    axes = drawing.canvas(12, 4.4, inches=5)
    for d, sentences in enumerate(losses):
        axes.text(0, 1.1 + 2.3 * d, f"device {d}", va="center")
        for row, sentence in enumerate(sentences):
            for column, loss in enumerate(sentence):
                valid = weights[d, row, column] > 0
                place = 2.6 + 1.3 * column, 0.1 + 2.3 * d + row
                drawing.box(axes, *place, f"{loss:.0f}" if valid else "pad", device=d if valid else None, width=1.2)
