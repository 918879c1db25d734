"""Pictures of lesson 16."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from pmapdp.lessons import drawing
from pmapdp.lessons.programs import memory

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


@drawing.picture
def bytes_of_seven_billion(gigabytes: dict[str, tuple[float, float, float]]) -> None:
    """Bars of GB on one of eight devices, against a line at 80 GB: data parallel 112, ZeRO-1 63, ZeRO-2 38.5, ZeRO-3 14."""
    _, axes = plt.subplots(figsize=(7, 2.1))
    left = np.zeros(len(gigabytes))
    parts = {"parameters": 0, "gradients": 1, "Adam's moments": 4}
    for (part, colour), sizes in zip(parts.items(), np.transpose(list(gigabytes.values())), strict=True):
        axes.barh(list(gigabytes), sizes, left=left, color=drawing.DEVICE_COLOURS[colour], height=0.6, label=part)
        left += sizes
    for row, total in enumerate(left):
        axes.text(total + 1, row, f"{total:g} GB", va="center")
    axes.axvline(80, color=drawing.INK, linestyle=":")
    axes.text(80.5, 3.3, "an 80 GB GPU", size=8)
    axes.invert_yaxis()
    axes.set(xlim=(0, 128), xlabel="GB on each of eight devices")
    drawing.legend_beside(axes)


@drawing.picture
def zero_over_time() -> None:
    """Stages of a step: replicated has an all-reduce; ZeRO-1 a reduce-scatter and an all-gather; ZeRO-3 two all-gathers, too."""
    axes = drawing.canvas(27, 8)
    for row, (name, stages) in enumerate(STAGES.items()):
        left, top = 5, 0.3 + 2.2 * row
        axes.text(0.2, top + 0.85, name, weight="bold", va="center")
        for text, length, communicates in stages:
            ground, colour = ("none", drawing.INK) if communicates else (drawing.INK, "white")
            axes.add_patch(Rectangle((left, top), length - 0.12, 1.7, facecolor=ground, edgecolor=drawing.INK, lw=1.2))
            axes.text(left + length / 2, top + 0.85, text, ha="center", va="center", fontsize=8, color=colour)
            left += length
    axes.text(5, 7.5, "time \u2192 (outlined: communication; the thin bar updates 1/N of the parameters)")


@drawing.picture
def memory_over_time(programs: dict[str, Any]) -> None:
    """Memory of one device over a step: highest if replicated, then gathered first, in the layer, again, and left to the compiler."""
    plt.figure(figsize=(7, 3.2))
    for colour, (name, program) in zip((7, 5, 1, 2, 0), programs.items(), strict=True):
        at_rest = program.memory_analysis().argument_size_in_bytes / 1e6
        megabytes = [at_rest, *(at_rest + each for each in memory.curve(program)), at_rest]
        time = np.linspace(0, 1, len(megabytes))  # in instructions
        label = f"{name}: {at_rest:.0f} MB at rest,\n{max(megabytes):.0f} MB at the peak"
        plt.plot(time, megabytes, color=drawing.DEVICE_COLOURS[colour], label=label, linewidth=1.3)
    plt.gca().set(xlabel="one step, from start to end", ylabel="MB on one device", xticks=[], ylim=(0, None))
    drawing.legend_beside(plt.gca(), fontsize=8)
