"""Pictures of lesson 02."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


@drawing.picture
def trace() -> None:
    """First call: a Python function is traced to a jaxpr and compiled. Later calls go from the arrays straight to the program."""
    axes = drawing.canvas(19, 3.9)
    stations = ((0, "Python function"), (6.9, "jaxpr: a list\nof operations"), (13.8, "compiled program"))
    for left, text in stations:
        drawing.box(axes, left, 0.6, text, width=5.0, height=1.5)
    drawing.arrow(axes, (5.0, 1.3), (6.9, 1.3))
    drawing.arrow(axes, (11.9, 1.3), (13.8, 1.3))
    axes.text(5.95, 0.4, "trace", ha="center")
    axes.text(12.85, 0.4, "compile", ha="center")
    axes.text(0, 0.25, "first call", va="center", weight="bold")
    drawing.box(axes, 0, 2.8, "arrays", device=0, width=5.0, height=0.9)
    drawing.arrow(axes, (5.0, 3.25), (16.3, 3.25), device=0)
    drawing.arrow(axes, (16.3, 3.25), (16.3, 2.15), device=0)
    axes.text(5.4, 2.9, "every later call with these shapes", va="center", weight="bold")


@drawing.picture
def jit_or_not(times: dict[str, tuple[float, float]]) -> None:  # milliseconds (without, with)
    """Bars of the time without and with jit: GELU is several times faster with it, the matrix products about as fast."""
    _, panels = plt.subplots(1, len(times), figsize=(7, 2.4))
    for panel, (name, (without, compiled)) in zip(panels, times.items(), strict=True):
        panel.bar(["without jit", "with jit"], [without, compiled], color=[drawing.INK, drawing.DEVICE_COLOURS[0]])
        panel.set(title=f"{name}: {without / compiled:.1f} times", ylabel="ms")
    plt.tight_layout()


@drawing.picture
def gradients(each: np.ndarray, of_mean: np.ndarray) -> None:  # [examples, 2], [2]
    """Dots, one an example, are scattered widely; a cross marks their mean, and a circle around it the gradient of the mean loss."""
    plt.figure(figsize=(5, 3))
    plt.plot(*each.T, ".", color=drawing.DEVICE_COLOURS[0], alpha=0.6, label="an example's gradient")
    plt.plot(*each.mean(0), "x", color=drawing.DEVICE_COLOURS[5], markersize=11, markeredgewidth=3, label="their mean")
    circle = {"color": drawing.INK, "markersize": 19, "markerfacecolor": "none", "markeredgewidth": 2}
    plt.plot(*of_mean, "o", label="gradient of the mean loss", **circle)
    plt.gca().set(xlabel="with respect to W1[0, 1]", ylabel="with respect to W1[1, 1]")
    drawing.legend_beside(plt.gca())
