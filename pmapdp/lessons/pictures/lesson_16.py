"""The pictures of lesson 16."""

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from pmapdp.lessons import drawing

# (text, length, whether it communicates) of each stage of a step. The backward pass takes twice as long as the forward
# pass, and an all-reduce as long as a reduce-scatter and an all-gather.
STAGES = {
    "replicated": (("forward", 4, 0), ("backward", 8, 0), ("all-reduce", 6, 1), ("update", 2.4, 0)),
    "ZeRO-1": (("forward", 4, 0), ("backward", 8, 0), ("reduce-\nscatter", 3, 1), ("", 0.3, 0), ("all-\ngather", 3, 1)),
    "ZeRO-3": (
        ("all-\ngather", 3, 1),
        ("forward", 4, 0),
        ("all-\ngather", 3, 1),
        ("backward", 8, 0),
        ("reduce-\nscatter", 3, 1),
        ("", 0.3, 0),
    ),
}


def stage(axes: Axes, left: float, top: float, text: str, length: float, communicates: int) -> None:
    """A computation with a grey ground, a communication without one."""
    ground = "none" if communicates else drawing.INK
    axes.add_patch(Rectangle((left, top), length - 0.12, 1.7, facecolor=ground, edgecolor=drawing.INK, linewidth=1.2))
    colour = drawing.INK if communicates else "white"
    axes.text(left + length / 2, top + 0.85, text, ha="center", va="center", fontsize=8, color=colour)


@drawing.picture
def zero_over_time() -> None:
    """Stages of a step: replicated has an all-reduce; ZeRO-1 a reduce-scatter and an all-gather; ZeRO-3 two all-gathers, too."""
    axes = drawing.canvas(27, 8)
    for row, (name, stages) in enumerate(STAGES.items()):
        left, top = 5, 0.3 + 2.2 * row
        axes.text(0.2, top + 0.85, name, weight="bold", va="center")
        for text, length, communicates in stages:
            stage(axes, left, top, text, length, communicates)
            left += length
    axes.text(5, 7.5, "time \u2192 (outlined: communication; the thin bar updates 1/N of the parameters)")


@drawing.picture
def bytes_on_a_device(rest: dict[str, float], peak: dict[str, float]) -> None:
    """MB on a device as bars, at rest and at the peak of a step: most if replicated, less with split optimizer state, least if all is split."""
    _, axes = plt.subplots(figsize=(7, 2))
    names = list(rest)
    axes.barh(names, [rest[name] for name in names], color=drawing.INK, label="at rest")
    added = [peak[name] - rest[name] for name in names]
    axes.barh(
        names, added, left=[rest[name] for name in names], color="none", edgecolor=drawing.INK, label="during the step"
    )
    axes.set_xlabel("MB on one device (three matrices, Adam, 64 examples, 8 devices)")
    axes.invert_yaxis()
    axes.legend()
