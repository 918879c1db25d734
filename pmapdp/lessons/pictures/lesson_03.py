"""Pictures of lesson 03."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def step() -> None:
    """Model, optimizer state and batch go into train_step: grad, optimizer update, apply. Out come the new ones, and sums."""
    axes = drawing.canvas(19, 4.4)
    text = "train_step\n\n1. jax.grad\n2. optimizer.update\n3. apply_updates"
    drawing.box(axes, 6.4, 0, text, width=5.4, height=4.35)
    rows = {
        0.0: ("model", "new model"),
        1.7: ("optimizer state", "new optimizer state"),
        3.4: ("batch", "sums"),
    }
    for top, (given, returned) in rows.items():
        drawing.box(axes, 0, top, given, width=5.0, height=0.95)
        drawing.arrow(axes, (5.0, top + 0.48), (6.3, top + 0.48))
        drawing.arrow(axes, (11.9, top + 0.48), (13.2, top + 0.48))
        drawing.box(axes, 13.3, top, returned, width=5.6, height=0.95)


@drawing.picture
def learning_curve(
    curve: np.ndarray,
) -> None:  # [epochs, 4] loss and accuracy of training, then of validation
    """Left, the training loss falls over 30 epochs, and the validation loss turns up after a few. Right, the two accuracies part at 92 %."""
    figure, panels = plt.subplots(1, 2, figsize=(8, 2.8))
    epochs = range(len(curve))
    for panel, column, name in zip(panels, (0, 1), ("loss", "accuracy"), strict=True):
        panel.plot(epochs, curve[:, column], color=drawing.INK, label="training")
        panel.plot(
            epochs,
            curve[:, column + 2],
            color=drawing.ACCENT,
            linestyle="--",
            label="validation",
        )
        panel.set(xlabel="epoch", ylabel=name, xticks=range(0, len(curve), 5))
    best = int(curve[:, 2].argmin())
    panels[0].plot(best, curve[best, 2], "o", color=drawing.ACCENT)
    panels[0].annotate(
        "stop here",
        (best, curve[best, 2]),
        (best + 1, 1.6 * curve[best, 2]),
        arrowprops={"arrowstyle": "-"},
    )
    panels[1].axhline(
        0.92, color=drawing.INK, linestyle=":", label="training, knowing the centres"
    )
    for panel in panels:
        panel.legend()
    figure.tight_layout()
