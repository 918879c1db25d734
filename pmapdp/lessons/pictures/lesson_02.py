"""Pictures of lesson 02, and what reports an error for it."""

import jax
import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing


def result_or_error(function, x) -> str:
    """Return the function's result as text. If JAX refuses, return the first line of the error."""
    try:
        return str(function(x))
    except jax.errors.JAXTypeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


@drawing.picture
def trace() -> None:
    """In the first call the Python function `2 * x` is traced to one operation, `mul`, and compiled. In every call the number goes to the compiled program, which returns the result."""
    axes = drawing.canvas(23.4, 3.9, inches=8.6)
    stations = (
        ("Python:\nreturn 2 * x", "trace"),
        ("operations:\nb = mul 2.0 a", "compile"),
        ("compiled program", "run"),
    )
    for left, (text, verb) in zip((0, 6.9, 13.8), stations, strict=True):
        drawing.box(axes, left, 0.6, text, width=5.0, height=1.5)
        drawing.arrow(axes, (left + 5.0, 1.35), (left + 6.9, 1.35))
        axes.text(left + 5.95, 0.4, verb, ha="center")
    drawing.box(axes, 20.7, 0.85, "2.0 4.0 6.0", width=2.7, height=1.0, size=9)
    axes.text(0, 0.25, "in the first call", va="center", weight="bold")
    drawing.box(axes, 0, 2.8, "1.0    2.0    3.0", width=5.0, height=0.9)
    axes.plot([5.1, 16.3, 16.3], [3.25, 3.25, 2.5], color=drawing.INK, linewidth=1.4)
    drawing.arrow(axes, (16.3, 3.25), (16.3, 2.1))
    axes.text(5.4, 2.9, "in every call with this shape", va="center", weight="bold")


@drawing.picture
def gradients(
    each: np.ndarray, of_mean: np.ndarray
) -> None:  # with respect to b1: [examples, 32], [32]
    """Dots, one an example, are scattered widely; a cross marks their mean, away from 0, and a circle around it the gradient of the mean loss."""
    units = np.array([11, 27])
    each, of_mean = each[:, units], of_mean[units]
    plt.figure(figsize=(5, 3))
    plt.plot(*each.T, ".", color=drawing.INK, alpha=0.6, label="an example's gradient")
    plt.plot(
        *each.mean(0),
        "x",
        color=drawing.ACCENT,
        markersize=11,
        markeredgewidth=3,
        label="their mean",
    )
    plt.plot(
        *of_mean,
        "o",
        color=drawing.INK,
        ms=17,
        mfc="none",
        mew=2,
        label="gradient of the mean loss",
    )
    plt.gca().set(xlabel="with respect to b1[11]", ylabel="with respect to b1[27]")
    drawing.legend_beside(plt.gca())
