"""Pictures of lesson 01."""

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def forward_and_backward() -> None:
    """Above, the forward pass from inputs [B, 64] to the loss. Below, g goes back from [B, 10] at the logits to [B, 32] at the hidden layer. Between them, each weight's gradient joins the activations above with the g below: [64, B] times [B, 32] for W1, [32, B] times [B, 10] for W2."""
    axes = drawing.canvas(26.5, 9.7, inches=8.6)
    forward = (
        (0, "inputs\n[B, 64]"),
        (9.5, "hidden\n[B, 32]"),
        (19, "logits\n[B, 10]"),
        (24.3, "loss\n[ ]"),
    )
    for left, text in forward:
        width = 2.2 if "loss" in text else 3.4
        drawing.box(axes, left, 0.6, text, width=width, height=1.5)
    for start, end, text in (
        (3.4, 9.5, "@ W1 [64, 32] + b1\nthen ReLU"),
        (12.9, 19, "@ W2 [32, 10] + b2"),
        (22.4, 24.3, ""),
    ):
        drawing.arrow(axes, (start, 1.35), (end, 1.35))
        axes.text((start + end) / 2, 1.2, text, ha="center", va="bottom", fontsize=9)
    drawing.box(axes, 19, 7.2, "g [B, 10]", width=3.4, height=1.5)
    drawing.box(axes, 9.5, 7.2, "g [B, 32]", width=3.4, height=1.5)
    axes.plot([25.4, 25.4], [2.1, 7.95], color=drawing.INK, linestyle="--")
    drawing.arrow(axes, (25.4, 7.95), (22.4, 7.95), dashed=True)
    drawing.arrow(axes, (19, 7.95), (12.9, 7.95), dashed=True)
    axes.text(24.4, 8.2, "p, minus 1\nat the label", ha="center", va="top", fontsize=9)
    back = "@ W2.T [10, 32]\nthen 0 where ReLU gave 0"
    axes.text(15.95, 8.2, back, ha="center", va="top", fontsize=9)
    gradients = (
        (2.5, "gradient of W1 [64, 32]\ninputs.T [64, B] @ g [B, 32]"),
        (12.0, "gradient of W2 [32, 10]\nhidden.T [32, B] @ g [B, 10]"),
    )
    for left, text in gradients:
        drawing.box(axes, left, 3.7, text, width=7.9, height=1.9, size=9)
        drawing.arrow(axes, (left - 0.8, 2.1), (left + 2.4, 3.7))
        drawing.arrow(axes, (left + 8.7, 7.2), (left + 5.5, 5.6), dashed=True)


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
