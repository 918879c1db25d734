"""Pictures of lesson 03."""

import matplotlib.pyplot as plt

from pmapdp_lessons import drawing


def split_and_merge() -> None:
    """A module taken apart into structure and parameters, and the step that takes and returns parameters."""
    axes = drawing.canvas(17, 4.2)
    drawing.box(axes, 0, 1.6, "nnx.Module", width=3)
    drawing.box(axes, 5.0, 0.2, "structure, fixed", width=4.2)
    drawing.box(axes, 5.0, 3.0, "params, a pytree", device=0, width=4.2)
    drawing.arrow(axes, (3, 1.8), (5.0, 0.7))
    drawing.arrow(axes, (3, 2.2), (5.0, 3.3), device=0)
    axes.text(3.3, 2.05, "nnx.split")
    drawing.box(axes, 11.4, 1.4, "compiled step:\nmerge, grad, update", width=5.4, height=1.2)
    drawing.arrow(axes, (9.2, 0.7), (11.4, 1.8))
    drawing.arrow(axes, (9.2, 3.2), (11.4, 2.3), device=0)
    drawing.arrow(axes, (14, 2.6), (9.2, 3.7), device=0)
    axes.text(11.9, 3.6, "new params")
    plt.show()
