"""Pictures of lesson 06."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp_lessons import drawing


def ring(states: list[np.ndarray], sums: np.ndarray) -> None:
    """The ring all-reduce step by step: a row is a device, a column a chunk of one number.

    Args:
        states: what the devices hold before and after every step, each `[N, N]`.
        sums: `[N]`, the numbers that everybody holds at the end; they are drawn bold.
    """
    N = len(sums)
    _, places = plt.subplots(2, 4, figsize=(9, 4.8), layout="constrained")
    for step, axes in enumerate(places.flat):
        axes.set_axis_off()
        if step >= len(states):
            continue
        title = "start" if step == 0 else f"{step}: add" if step < N else f"{step}: copy"
        axes.set_title(title, fontsize=11, color=drawing.INK)
        axes.set_xlim(-0.5, N - 0.5)
        axes.set_ylim(N - 0.5, -0.5)
        for d in range(N):
            for chunk in range(N):
                arrived = step > 0 and chunk == (d - step) % N
                colour = drawing.DEVICE_COLOURS[(d - 1) % N] if arrived else "none"
                box = plt.Rectangle((chunk - 0.48, d - 0.45), 0.96, 0.9, facecolor=colour, edgecolor=drawing.INK)
                axes.add_patch(box)
                number = states[step][d, chunk]
                style = {"color": "white" if arrived else drawing.INK, "fontsize": 10}
                weight = "bold" if number == sums[chunk] else "normal"
                axes.text(chunk, d, number, ha="center", va="center", weight=weight, **style)
    plt.show()


def collectives() -> None:
    """Five collectives on three devices: what each device holds before and after."""
    axes = drawing.canvas(18.2, 9.8)
    names = {
        "psum": ("a+b+c",) * 3,
        "pmean": ("mean",) * 3,
        "all_gather": ("a, b, c",) * 3,
        "psum_scatter": ("sum of 1st", "sum of 2nd", "sum of 3rd"),
        "ppermute": ("c", "a", "b"),
    }
    for number, (name, after) in enumerate(names.items()):
        left, top = 6.4 * (number % 3), 5.2 * (number // 3)
        axes.text(left + 2.6, top + 0.3, name, ha="center", weight="bold")
        for d, letter in enumerate("abc"):
            drawing.box(axes, left, top + 0.9 + 1.2 * d, letter, device=d, width=0.8)
            drawing.box(axes, left + 2.6, top + 0.9 + 1.2 * d, after[d], device=d, width=2.7)
            for source in range(3) if name != "ppermute" else [(d - 1) % 3]:
                start, end = (left + 0.8, top + 1.3 + 1.2 * source), (left + 2.6, top + 1.3 + 1.2 * d)
                drawing.arrow(axes, start, end, device=source)
    plt.show()
