"""Pictures of lesson 01."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def digits(images: np.ndarray, labels: np.ndarray) -> None:
    """Ten scans of handwritten digits, 8 x 8 grey pixels each, one of each class from 0 to 9.

    Images are `[n, 64]`, labels `[n]`.
    """
    _, places = plt.subplots(1, 10, figsize=(7, 0.9))
    for digit, axes in enumerate(places):
        axes.imshow(images[labels == digit][0].reshape(8, 8), cmap="Greys", interpolation="nearest")
        axes.set_title(digit, fontsize=9)
        axes.set_axis_off()


@drawing.picture
def forward_and_backward() -> None:
    """From x [B, 64] through hidden [B, 32] and logits [B, 10] to the loss; the gradients go back in the same steps."""
    axes = drawing.canvas(17, 3.6)
    stations = ((0, "x\n[B, 64]"), (4.6, "hidden\n[B, 32]"), (9.2, "logits\n[B, 10]"), (13.8, "loss\n[ ]"))
    for place, text in stations:
        drawing.box(axes, place, 1.2, text, width=2.8, height=1.2)
    labels = (
        (2.8, "W1, b1, ReLU", "gradient of W1, b1"),
        (7.4, "W2, b2", "gradient of W2, b2"),
        (12.0, "cross-entropy", "p - target"),
    )
    for place, forward, backward in labels:
        drawing.arrow(axes, (place, 1.5), (place + 1.8, 1.5))
        drawing.arrow(axes, (place + 1.8, 2.1), (place, 2.1), dashed=True)
        axes.text(place + 0.9, 0.7, forward, ha="center", fontsize=9)
        axes.text(place + 0.9, 3.1, backward, ha="center", fontsize=9)


@drawing.picture
def eight_parts() -> None:
    """A batch of 64 is cut into eight parts of 8 rows; each has a gradient; their mean is the gradient of the whole batch."""
    axes = drawing.canvas(18.9, 5.2)
    for top, label in {0.5: "batch", 2.25: "backward", 4.55: "mean"}.items():
        axes.text(0, top, label, va="center")
    drawing.box(axes, 3.0, 0.0, "x [64, 64], labels [64]", width=15.6, height=0.9)
    drawing.box(axes, 3.0, 4.1, "(g0 + g1 + ... + g7) / 8 = gradient of the whole batch", width=15.6, height=0.9)
    for d in range(8):
        left = 3.0 + 1.98 * d
        drawing.arrow(axes, (left + 0.87, 0.95), (left + 0.87, 1.75), device=d)
        drawing.box(axes, left, 1.8, f"g{d}\n8 rows", device=d, width=1.78, height=1.1)
        drawing.arrow(axes, (left + 0.87, 2.95), (left + 0.87, 4.05), device=d)
