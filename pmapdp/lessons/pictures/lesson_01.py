"""Pictures of lesson 01."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def forward_and_backward() -> None:
    """From inputs [B, 64] through hidden [B, 32] and logits [B, 10] to the loss; the gradients go back in the same steps. At the label, 1 is taken from the probability."""
    axes = drawing.canvas(17, 4.4)
    stations = (
        (0, "inputs\n[B, 64]"),
        (4.6, "hidden\n[B, 32]"),
        (9.2, "logits\n[B, 10]"),
        (13.8, "loss\n[ ]"),
    )
    for place, text in stations:
        drawing.box(axes, place, 1.2, text, width=2.8, height=1.2)
    labels = (
        (2.8, "W1, b1, ReLU", "gradient of W1, b1"),
        (7.4, "W2, b2", "gradient of W2, b2"),
        (12.0, "cross-entropy", "p - 1 at the label:"),
    )
    for place, forward, backward in labels:
        drawing.arrow(axes, (place, 1.5), (place + 1.8, 1.5))
        drawing.arrow(axes, (place + 1.8, 2.1), (place, 2.1), dashed=True)
        axes.text(place + 0.9, 0.7, forward, ha="center", fontsize=9)
        axes.text(place + 0.9, 3.1, backward, ha="center", fontsize=9)
    example = "0.7, 0.2, 0.1 becomes\n-0.3, 0.2, 0.1"
    axes.text(12.9, 4.1, example, ha="center", fontsize=9)


@drawing.picture
def two_losses(right: Sequence[float], wrong: Sequence[float]) -> None:
    """Two loss curves over 80 updates, with the right gradient and with the wrong one; both fall, and they are close together."""
    plt.plot(right, color=drawing.INK, label="correct gradient")
    plt.plot(wrong, color=drawing.ACCENT, linestyle="--", label="without rule 3")
    plt.gca().set(xlabel="update", ylabel="loss", ylim=(0, None))
    plt.legend()


@drawing.picture
def eight_parts(parts: np.ndarray, whole: float) -> None:  # parts [8]
    """Eight bars in eight colours, the gradient of one weight from each part; a line marks their mean, the whole batch's gradient."""
    plt.bar(range(8), parts, color=drawing.DEVICE_COLOURS[:8])
    plt.axhline(0, color=drawing.INK, linewidth=0.8)
    plt.axhline(whole, color=drawing.INK, linestyle="--")
    plt.text(7.7, whole, "whole batch\n= mean of the eight", va="center")
    plt.gca().set(
        xlabel="part of the batch",
        ylabel="gradient of one weight",
        xticks=range(8),
        xlim=(-0.6, 7.6),
    )
