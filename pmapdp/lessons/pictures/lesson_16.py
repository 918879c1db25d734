"""Pictures of lesson 16."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.patches import Rectangle

from pmapdp.lessons import drawing
from pmapdp.lessons.programs import memory

# The backward pass takes twice as long as the forward pass, and an all-reduce as long
# as the two that it's made of.
STAGES = {
    "replicated": ("forward", "backward", "all-reduce", "update"),
    "ZeRO-1": ("forward", "backward", "reduce-scatter", "", "all-gather"),
    "ZeRO-3": ("all-gather", "forward", "all-gather", "backward", "reduce-scatter", ""),
}
LENGTHS = {
    "forward": 4,
    "backward": 8,
    "update": 2.4,
    "": 0.3,
    "all-reduce": 6,
    "reduce-scatter": 3,
    "all-gather": 3,
}


@drawing.picture
def bytes_of_seven_billion(gigabytes: dict[str, tuple[float, float, float]]) -> None:
    """Bars of GB on one of eight devices, against a line at 80 GB: data parallel 112, ZeRO-1 63, ZeRO-2 38.5, ZeRO-3 14."""
    _, axes = plt.subplots(figsize=(7, 2.1))
    left = np.zeros(len(gigabytes))
    parts = {"parameters": 0, "gradients": 1, "Adam's moments": 4}
    for (part, colour), sizes in zip(
        parts.items(), np.transpose(list(gigabytes.values())), strict=True
    ):
        axes.barh(
            list(gigabytes),
            sizes,
            left=left,
            color=drawing.DEVICE_COLOURS[colour],
            height=0.6,
            label=part,
        )
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
    """Stages of a step: replicated has an all-reduce; ZeRO-1 a reduce-scatter and an all-gather; ZeRO-3 two all-gathers, too. For n bytes of parameters they send 2n, 2n and 3n."""
    axes = drawing.canvas(31, 8, inches=7.6)
    for row, (name, stages) in enumerate(STAGES.items()):
        left, top = 4.6, 0.3 + 2.2 * row
        axes.text(0, top + 0.85, name, weight="bold", va="center")
        for stage in stages:
            kind = (
                1
                if "all" in stage or "scatter" in stage
                else 0
                if "ward" in stage
                else 2
            )
            length, ink = LENGTHS[stage], "black" if kind else "white"
            axes.add_patch(
                Rectangle(
                    (left, top),
                    length - 0.1,
                    1.7,
                    facecolor=drawing.DEVICE_COLOURS[kind],
                )
            )
            text = stage if length == 6 else stage.replace("-", "-\n")
            axes.text(
                left + length / 2,
                top + 0.85,
                text,
                ha="center",
                va="center",
                fontsize=8,
                color=ink,
            )
            left += length
        axes.text(
            left + 0.4, top + 0.85, f"sends {3 if row == 2 else 2} n bytes", va="center"
        )
    axes.text(
        4.6,
        7.5,
        "time \u2192   blue: compute, orange: communicate, green: update (1/N of it with ZeRO)",
        size=9,
    )


@drawing.picture
def memory_over_time(programs: dict[str, Any]) -> None:
    """Memory of one device over a step, four panels. The peak is highest if replicated, then gathered first, then in the layer, and lowest if left to the compiler."""
    _, grid = plt.subplots(
        1, len(programs), figsize=(9, 2.5), sharey=True, layout="constrained"
    )
    for axes, (name, program) in zip(grid, programs.items(), strict=True):
        at_rest = program.memory_analysis().argument_size_in_bytes / 1e6
        megabytes = [
            at_rest,
            *(at_rest + each for each in memory.curve(program)),
            at_rest,
        ]
        time = np.linspace(0, 1, len(megabytes))  # in instructions
        axes.fill_between(time, at_rest, megabytes, color=drawing.DEVICE_COLOURS[4])
        axes.fill_between(time, at_rest, color=drawing.DEVICE_COLOURS[0])
        axes.axhline(max(megabytes), color=drawing.INK, linestyle=":", linewidth=1)
        axes.text(
            0.5,
            max(megabytes) + 2,
            f"peak {max(megabytes):.0f} MB",
            ha="center",
            fontsize=9,
        )
        axes.set_title(name.replace(" in", "\nin").replace(" to", "\nto"), fontsize=10)
        axes.set(xlabel="one step", xticks=[], ylim=(0, 80))
    grid[0].set_ylabel("MB on one device")
    grid[0].text(0.5, 22, "the state, at rest", color="white", ha="center", fontsize=8)
