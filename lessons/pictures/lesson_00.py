"""Pictures of lesson 00."""

import drawing
import matplotlib.pyplot as plt


def one_row_each() -> None:
    """Eight rows of an array go from the host to eight devices, which share the cores of one machine."""
    axes = drawing.canvas(17.6, 5.0)
    drawing.box(axes, 6.3, 0.1, "host: x [8, 1]", width=5, height=0.9)
    for d in range(8):
        left = 0.2 + 2.2 * d
        drawing.arrow(axes, (8.8, 1.0), (left + 0.9, 2.2), device=d)
        drawing.box(axes, left, 2.2, f"row {d}\n[1]", device=d, height=1.2)
        drawing.arrow(axes, (left + 0.9, 3.4), (left + 0.9, 4.1), device=d)
    drawing.box(axes, 0.2, 4.1, "the cores and the memory of one machine", width=17.2)
    plt.show()


def tree_of_sums() -> None:
    """Eight arrays are added up in pairs, in three rounds."""
    axes = drawing.canvas(18, 6.4)
    for level in range(4):
        axes.text(0, 0.5 + 1.7 * level, "start" if level == 0 else f"round {level}", va="center")
        for d in range(0, 8, 2**level):
            left = 2.4 + 1.95 * d
            drawing.box(axes, left, 0.1 + 1.7 * level, f"{d}" if level == 0 else f"{d}..{d + 2**level - 1}", device=d)
            if level < 3:
                to = 2.4 + 1.95 * (d - d % 2 ** (level + 1)) + 0.9
                drawing.arrow(axes, (left + 0.9, 0.9 + 1.7 * level), (to, 1.8 + 1.7 * level), device=d)
    plt.show()
