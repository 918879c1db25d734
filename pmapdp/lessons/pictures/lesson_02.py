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
    drawing.box(axes, 0, 2.8, "arrays", width=5.0, height=0.9)
    drawing.arrow(axes, (5.0, 3.25), (16.3, 3.25))
    drawing.arrow(axes, (16.3, 3.25), (16.3, 2.15))
    axes.text(5.4, 2.9, "every later call with these shapes", va="center", weight="bold")


@drawing.picture
def five_calls(rows: list[int], seconds: list[float]) -> None:
    """Bars of the time of five calls on a scale of powers of ten: only the first and the fourth compile, and take far longer."""
    names = [f"call {number}\n[{n}, 64]" for number, n in enumerate(rows, 1)]
    traced = [n not in rows[:number] for number, n in enumerate(rows)]
    colours = [drawing.ACCENT if new else drawing.INK for new in traced]
    bars = plt.bar(names, [1000 * each for each in seconds], color=colours, width=0.6)
    plt.bar_label(bars, ["trace,\ncompile, run" if new else "run" for new in traced], padding=2)
    plt.gca().set(yscale="log", ylabel="milliseconds", ylim=(None, 10_000 * max(seconds)))


@drawing.picture
def jit_or_not(times: dict[str, np.ndarray]) -> None:  # milliseconds [without, with]
    """Two bars, how many times faster jit makes it: GELU several times, the matrix products hardly at all."""
    plt.figure(figsize=(7, 1.5))
    bars = plt.barh(list(times), [without / compiled for without, compiled in times.values()], color=drawing.INK)
    plt.bar_label(bars, [f"{without:.1f} ms to {compiled:.1f} ms" for without, compiled in times.values()], padding=4)
    plt.axvline(1, color=drawing.ACCENT, linestyle="--")
    plt.gca().invert_yaxis()
    plt.gca().set(xlabel="times as fast with jit (dashed: no gain)")
    plt.margins(x=0.25)


@drawing.picture
def gradients(each: np.ndarray, of_mean: np.ndarray) -> None:  # [examples, 2], [2]
    """Dots, one an example, are scattered widely; a cross marks their mean, and a circle around it the gradient of the mean loss."""
    plt.figure(figsize=(5, 3))
    plt.plot(*each.T, ".", color=drawing.INK, alpha=0.6, label="an example's gradient")
    plt.plot(*each.mean(0), "x", color=drawing.ACCENT, markersize=11, markeredgewidth=3, label="their mean")
    circle = {"color": drawing.INK, "markersize": 19, "markerfacecolor": "none", "markeredgewidth": 2}
    plt.plot(*of_mean, "o", label="gradient of the mean loss", **circle)
    plt.gca().set(xlabel="with respect to W1[0, 1]", ylabel="with respect to W1[1, 1]")
    drawing.legend_beside(plt.gca())
