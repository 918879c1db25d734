"""Pictures of lesson 13."""

from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing
from pmapdp.lessons.programs import memory

N, K, ROWS = 8, 4, 64


@drawing.picture
def cuts() -> None:
    """64 rows, eight on each device, in four micro-batches: the global cut puts each micro-batch on two devices, your program puts two rows of each device into each."""
    axes = drawing.canvas(27, 13.2)
    batch = np.arange(ROWS)
    micro_batches = {
        "global cut: each on two devices": batch.reshape(K, -1),
        "your program: each on all eight devices": batch.reshape(N, K, -1)
        .swapaxes(0, 1)
        .reshape(K, -1),
    }
    for panel, (title, rows) in enumerate(micro_batches.items()):
        top = 6.9 * panel
        axes.text(16.6, top + 0.5, title, ha="center", weight="bold")
        for k in range(K):
            y = top + 1 + 1.25 * k
            axes.text(5.8, y + 0.5, f"micro-batch {k}", ha="right", va="center")
            for i, row in enumerate(rows[k]):
                drawing.box(
                    axes,
                    6.2 + 1.3 * i,
                    y,
                    str(row),
                    device=row * N // ROWS,
                    width=1.2,
                    height=1,
                    size=8,
                )


@drawing.picture
def memory_over_time(programs: dict[str, Any]) -> None:
    """Memory of one device after each instruction of an update: one high hill for the whole batch, and then a floor and a ramp, the gradients and a copy of them; with K micro-batches K lower hills on a floor, the sum of the gradients."""
    _, grid = plt.subplots(
        1, len(programs), figsize=(7, 2), sharey=True, layout="constrained"
    )
    for axes, (name, program) in zip(grid, programs.items(), strict=True):
        megabytes = memory.curve(program)  # after each instruction
        axes.fill_between(
            range(len(megabytes)), megabytes, color=drawing.DEVICE_COLOURS[0]
        )
        axes.set_title(name, fontsize=9)
        axes.set(xlabel="instructions, in order", xticks=[], ylim=(0, None))
    grid[0].set_ylabel("MB on one device")
    grid[-1].annotate(
        "the sum of the gradients",
        xy=(0.545, 0.06),
        xytext=(0.545, 0.7),
        xycoords="axes fraction",
        ha="center",
        fontsize=9,
        arrowprops={"arrowstyle": "->", "color": drawing.INK},
    )
