"""Pictures of lesson 02."""

import matplotlib.pyplot as plt

from pmapdp_lessons import drawing


def curves(points, values) -> None:
    """A function and its derivatives at `points` `[n]`; `values` is a list of `[n]`."""
    _, axes = plt.subplots(figsize=(7, 2.2))
    for order, curve in enumerate(values):
        label = ["tanh", "1st derivative", "2nd", "3rd"][order]
        axes.plot(points, curve, color=drawing.DEVICE_COLOURS[order], label=label)
    axes.legend(labelcolor="linecolor", loc="center left", bbox_to_anchor=(1.0, 0.5))
    plt.show()


def vectorized() -> None:
    """One image through predict_one, and three images through its vmap, on one device."""
    axes = drawing.canvas(15, 4.6)
    drawing.box(axes, 0, 0.2, "image [D]", device=0, width=2.8)
    drawing.arrow(axes, (2.8, 0.6), (4.2, 0.6), device=0)
    drawing.box(axes, 4.2, 0.2, "predict_one", width=5.6)
    drawing.arrow(axes, (9.8, 0.6), (11.2, 0.6), device=0)
    drawing.box(axes, 11.2, 0.2, "logits [C]", device=0, width=2.8)
    for row in range(3):
        drawing.box(axes, 0, 1.6 + row, f"image {row}", device=0, width=2.8)
        drawing.arrow(axes, (2.8, 2.0 + row), (4.2, 3.0), device=0)
        drawing.arrow(axes, (9.8, 3.0), (11.2, 2.0 + row), device=0)
        drawing.box(axes, 11.2, 1.6 + row, f"logits {row}", device=0, width=2.8)
    drawing.box(axes, 4.2, 2.4, "vmap(predict_one,\n in_axes=(None, 0))", width=5.6, height=1.2)
    plt.show()
