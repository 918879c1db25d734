"""Pictures of lesson 03, and what measures for them."""

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
def shares(losses: np.ndarray, weights: np.ndarray) -> None:  # [batches, B], twice
    """Three bar charts of how much each of eight rows counts in a mean. A: all eight alike, the padding too. B: the three examples of the second batch more than the four of the first. C: the seven examples alike, and the padding not at all."""
    examples = weights.sum(1, keepdims=True)
    ways = {
        "A, all rows": np.ones_like(losses) / losses.size,
        "B, mean of means": weights / examples / len(losses),
        "C, sum over count": weights / weights.sum(),
    }
    _, charts = plt.subplots(1, 3, figsize=(8, 2), sharey=True)
    for axes, (name, share) in zip(charts, ways.items(), strict=True):
        colours = np.where(weights > 0, drawing.INK, drawing.ACCENT).ravel()
        places = np.arange(losses.size) + np.repeat([0, 0.6], losses.shape[1])
        axes.bar(places, share.ravel(), color=colours)
        axes.set_title(f"{name}: {(share * losses).sum():.2f}", fontsize=10)
        axes.set(xlabel="loss of the row", xticks=places)
        axes.set_xticklabels([f"{loss:.0f}" for loss in losses.ravel()])
    charts[0].set(ylabel="share in the mean")
    charts[0].text(places[-1], 0.13, "padding", color=drawing.ACCENT, ha="center")
