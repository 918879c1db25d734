"""Pictures of lesson 03."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def step() -> None:
    """In PyTorch three batches change one model and one optimizer, one after the other. In JAX each of three train_steps takes a state and a batch, and returns the next state and sums; the state is the model and the optimizer's state."""
    axes = drawing.canvas(26, 10.4, inches=8.4)
    axes.text(0, 0.4, "PyTorch", weight="bold", va="center")
    changed = "one model and one optimizer, changed in place"
    drawing.box(axes, 0, 2.0, changed, width=24.0, height=1.0, size=9)
    axes.text(0, 4.4, "JAX", weight="bold", va="center")
    for update in range(3):
        left = 8.0 * update
        for top, target in ((0, 2.0), (4.0, 6.0)):
            drawing.box(axes, left + 4.0, top, f"batch {update}", width=3.0, size=9)
            drawing.arrow(axes, (left + 5.5, top + 0.8), (left + 5.5, target))
        state = f"model {update}\noptimizer\nstate {update}"
        drawing.box(axes, left, 6.0, state, width=3.0, height=2.1, size=9)
        drawing.arrow(axes, (left + 3.0, 7.05), (left + 4.0, 7.05))
        drawing.box(axes, left + 4.0, 6.0, "train_step", width=3.0, height=2.1, size=9)
        drawing.arrow(axes, (left + 7.0, 7.05), (left + 8.0, 7.05))
        drawing.arrow(axes, (left + 5.5, 8.1), (left + 5.5, 9.3))
        drawing.box(axes, left + 4.0, 9.3, f"sums {update}", width=3.0, size=9)
    axes.text(24.2, 7.05, "...", va="center")


@drawing.picture
def learning_curve(
    curve: np.ndarray,
) -> None:  # [epochs, 4] loss and accuracy of training, then of validation
    """Left, the training loss falls over 30 epochs, and the validation loss turns up after a few. Right, the two accuracies part at about 87 %, and only the training accuracy passes 90 %."""
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
