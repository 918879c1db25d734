"""Pictures of lesson 08."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import to_rgba

from pmapdp.lessons import drawing


@drawing.picture
def masks(of_schemes: dict[str, dict[int, np.ndarray]]) -> None:
    """Masks of eight examples, for three ways to choose keys on 1, 2 and 4 devices; a key per example gives equal masks.

    Args:
        of_schemes: name of a scheme to {N: bool `[examples, activations]`}; kept ones
            are drawn in the device's colour.
    """
    counts = list(next(iter(of_schemes.values())))
    _, grid = plt.subplots(
        len(of_schemes), len(counts), figsize=(7, 4.6), layout="constrained"
    )
    for row, (name, of_counts) in zip(grid, of_schemes.items(), strict=True):
        for axes, (N, mask) in zip(row, of_counts.items(), strict=True):
            picture = np.zeros(
                (*mask.shape, 4)
            )  # transparent where an activation is dropped
            for example, kept in enumerate(mask):
                picture[example, kept] = to_rgba(
                    drawing.DEVICE_COLOURS[example * N // len(mask)]
                )
            axes.imshow(picture, aspect="auto")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set_visible(True)
            axes.set_title(f"{name}, N = {N}", fontsize=9)
    grid[len(of_schemes) // 2, 0].set_ylabel("8 examples (rows)")
    grid[-1, len(counts) // 2].set_xlabel("12 activations (columns)")


@drawing.picture
def differences(by_keys: dict[str, np.ndarray]) -> None:  # [updates]
    """Dots, one an update: with a key per device the losses differ by up to 0.2; with a key per example they're equal, or differ by less than a millionth."""
    _, axes = plt.subplots(figsize=(7, 3))
    equal = 1e-8  # where a difference of 0 is drawn: a logarithmic axis has no 0
    for (name, apart), marker, colour in zip(
        by_keys.items(), "ox", (drawing.INK, drawing.ACCENT), strict=True
    ):
        axes.plot(
            range(1, len(apart) + 1),
            np.where(apart == 0, equal, apart),
            marker,
            color=colour,
            label=name,
        )
    axes.axhline(3e-8, color=drawing.INK, linestyle=":", linewidth=0.8)
    ticks = {equal: "equal", **{10.0**n: f"$10^{{{n}}}$" for n in (-7, -5, -3, -1)}}
    axes.set(
        yscale="log",
        ylim=(4e-9, 1),
        xlabel="update",
        ylabel="difference\nof the losses",
    )
    axes.set_yticks(list(ticks), ticks.values())
    axes.minorticks_off()
    drawing.legend_beside(axes)


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
                drawing.box(
                    axes,
                    *place,
                    f"{loss:.0f}" if valid else "pad",
                    device=d if valid else None,
                    width=1.2,
                )
