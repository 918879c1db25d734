"""Pictures of lesson 01."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp_lessons import drawing


def digits(images: np.ndarray, labels: np.ndarray) -> None:
    """The first image of each class; images `[n, 784]`, enlarged scans of 8 x 8 pixels, labels `[n]`."""
    _, places = plt.subplots(1, 10, figsize=(7, 0.9))
    for digit, axes in enumerate(places):
        axes.imshow(images[labels == digit][0].reshape(28, 28)[::2, ::2], cmap="Greys", interpolation="nearest")
        axes.set_title(digit, fontsize=9)
        axes.set_axis_off()
    plt.show()


def forward_and_backward() -> None:
    """Two layers with the shapes of the activations; gradients go the other way."""
    axes = drawing.canvas(17, 3.6)
    stations = ((0, "x\n[B, 784]"), (4.6, "hidden\n[B, 64]"), (9.2, "logits\n[B, 10]"), (13.8, "loss\n[ ]"))
    for place, text in stations:
        drawing.box(axes, place, 1.2, text, device=0, width=2.8, height=1.2)
    labels = (
        (2.8, "W1, b1, ReLU", "gradient of W1, b1"),
        (7.4, "W2, b2", "gradient of W2, b2"),
        (12.0, "cross-entropy", "p - target"),
    )
    for place, forward, backward in labels:
        drawing.arrow(axes, (place, 1.5), (place + 1.8, 1.5), device=0)
        drawing.arrow(axes, (place + 1.8, 2.1), (place, 2.1), device=1)
        axes.text(place + 0.9, 0.7, forward, ha="center", fontsize=9)
        axes.text(place + 0.9, 3.1, backward, ha="center", fontsize=9)
    plt.show()


def learning(history: list[tuple[float, float]], confusion: np.ndarray) -> None:
    """The losses of every epoch (train, test), and how often a digit [row] was taken for another [column]."""
    _, (left, right) = plt.subplots(1, 2, figsize=(7, 2.4), width_ratios=(2, 1.2))
    for number, name in enumerate(("train", "test")):
        losses = [pair[number] for pair in history]
        left.plot(range(1, len(losses) + 1), losses, color=drawing.DEVICE_COLOURS[number], label=name)
    left.set(xlabel="epoch", ylabel="loss")
    left.legend(labelcolor="linecolor")
    right.imshow(confusion, cmap="Blues")
    right.set(xlabel="guess", ylabel="digit", xticks=range(10), yticks=range(10))
    plt.show()
