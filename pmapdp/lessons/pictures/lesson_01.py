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
def digits_and_mistakes(
    curve: np.ndarray, images: np.ndarray, labels: np.ndarray, guesses: np.ndarray
) -> None:
    """Left, the losses on training and validation scans fall over 60 epochs. Right, scans that the network misread, with its guesses.

    `curve` `[epochs, 2]` has the two losses. Of n test scans there are `images` `[n,
    64]`, `labels` `[n]` and `guesses` `[n]`.
    """
    figure = plt.figure(figsize=(9, 3))
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.25))
    axes = left.subplots()
    axes.plot(curve[:, 0], color=drawing.INK, label="training")
    axes.plot(curve[:, 1], color=drawing.ACCENT, linestyle="--", label="validation")
    axes.set(xlabel="epoch", ylabel="loss", ylim=(0, None))
    axes.legend()
    left.subplots_adjust(bottom=0.18, left=0.15)
    misread = np.flatnonzero(guesses != labels)[:18]
    places = right.subplots(
        3, 6, gridspec_kw={"left": 0.02, "right": 0.98, "top": 0.9, "bottom": 0.02}
    )
    for place in places.flat:
        place.set_axis_off()
    for place, row in zip(places.flat, misread, strict=False):
        place.imshow(images[row].reshape(8, 8), cmap="Greys", interpolation="nearest")
        place.set_title(f"read {guesses[row]}, is {labels[row]}", fontsize=8)


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
