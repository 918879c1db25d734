"""Pictures of lesson 16."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing
from pmapdp.lessons.programs import memory

N = 8  # devices, and weights


@drawing.picture
def bytes_of_seven_billion(gigabytes: dict[str, tuple[float, float, float]]) -> None:
    """Bars of GB on one of eight devices, against a line at 80 GB: 112 with nothing split, 87.5 with the parameters split, 63 with the moments split, 14 with everything split."""
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
def a_weight_visits() -> None:
    """Device d holds weight d, then copies of all eight weights, then a gradient of d + 1 for each of them, then the sum, 36, for the weight that lives there, and at last its new weight, which is lower by 0.1 times 36 / 8."""
    axes = drawing.canvas(31.6, 10.7, inches=7.6)
    everywhere = range(N)
    for d in range(N):
        top = 1.4 + 1.15 * d
        axes.text(0, top + 0.5, f"device {d}", va="center", fontsize=8)
        rows = {  # left edge: {weight: its number}
            3.4: {d: d},
            6.2: {weight: weight for weight in everywhere},
            16.2: {weight: d + 1 for weight in everywhere},
            26.4: {d: sum(each + 1 for each in everywhere)},
            29.5: {d: f"{d - 0.45:.2f}"},
        }
        for left, row in rows.items():
            width = 1.9 if left > 26 else 1
            for place, (weight, number) in enumerate(row.items()):
                size = {"width": width, "height": 0.95, "size": 8}
                x = left + 1.1 * place
                drawing.box(axes, x, top, str(number), device=weight, **size)
    titles = {
        3.9: "weight",
        10.5: "all-gather:\nall weights, for a while",
        20.5: "gradients from\nits own example",
        27.3: "reduce-\nscatter",
        30.5: "new\nweight",
    }
    for middle, title in titles.items():
        axes.text(middle, 1, title, ha="center", va="bottom", fontsize=9)


@drawing.picture
def memory_over_time(programs: dict[str, Any]) -> None:
    """Memory of one device over a step, three panels. The peak is 70 MB if replicated, 57 if gathered first, and 11 if left to the compiler."""
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
        axes.set_title(name, fontsize=10)
        axes.set(xlabel="one step", xticks=[], ylim=(0, 80))
    grid[0].set_ylabel("MB on one device")
    grid[0].text(0.5, 22, "the state, at rest", color="white", ha="center", fontsize=8)
    grid[1].text(
        0.5, 22, "only during the step", color="black", ha="center", fontsize=8
    )
