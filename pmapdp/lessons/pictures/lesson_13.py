"""Pictures of lesson 13."""

from typing import Any

import matplotlib.pyplot as plt

from pmapdp.lessons import drawing
from pmapdp.lessons.programs import memory

N, K, ROWS = 8, 4, 32


@drawing.picture
def cuts() -> None:
    """32 rows, four on each device, in four micro-batches: the global cut puts each micro-batch on two devices, your program puts each on all eight."""
    axes = drawing.canvas(31, 7.4)
    titles = {
        "global cut": "each on two devices",
        "your program": "each on all eight devices",
    }
    for column, (title, note) in enumerate(titles.items()):
        left = 6.6 + 12.6 * column
        axes.text(left + 5.2, 0.5, title, ha="center", weight="bold")
        axes.text(left + 5.2, 6.7, note, ha="center")
        for k in range(K):
            y = 1 + 1.25 * k
            if column == 0:
                axes.text(
                    left - 0.4, y + 0.5, f"micro-batch {k}", ha="right", va="center"
                )
            for i in range(ROWS // K):
                row = 4 * i + k if column else 8 * k + i
                drawing.box(
                    axes,
                    left + 1.3 * i,
                    y,
                    str(row),
                    device=row * N // ROWS,
                    width=1.2,
                    height=1,
                )


@drawing.picture
def work_of_a_device(work: dict[str, float]) -> None:
    """Two bars, the operations of one device: with the global cut it's four times as long as with your program."""
    operations = [number / 1e9 for number in work.values()]
    _, axes = plt.subplots(figsize=(7, 1.4))
    axes.barh(list(work), operations, 0.5, color=drawing.DEVICE_COLOURS[0])
    for row, number in enumerate(operations):
        axes.text(number, row, f"  {number:.2g} billion", va="center")
    axes.invert_yaxis()
    axes.set(xlabel="billion operations of one device")


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
