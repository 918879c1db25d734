"""Pictures of lesson 17."""

import matplotlib.pyplot as plt
import numpy as np

from pmapdp.lessons import drawing

ORDER = (
    0,
    1,
    4,
    5,
    6,
    7,
    2,
    3,
)  # the devices of two processes in the mesh, four devices each


@drawing.picture
def one_array() -> None:
    """A global array of 16 rows: process 0 gives rows 0 to 7 to devices 0 and 1, process 1 rows 8 to 15 to devices 2 and 3."""
    axes = drawing.canvas(14, 3.2)
    for device in range(4):
        drawing.box(
            axes,
            1 + 3.2 * device,
            0.4,
            f"rows {4 * device}-{4 * device + 3}",
            device=device,
            width=2.4,
        )
        axes.text(
            2.2 + 3.2 * device,
            0.2,
            f"device {device}",
            ha="center",
            va="center",
            color=drawing.INK,
        )
    for process in range(2):
        text = f"process {process} gives rows {8 * process} to {8 * process + 7}"
        drawing.box(axes, 0.7 + 6.4 * process, 1.8, text, width=6, height=1)
        for device in (2 * process, 2 * process + 1):
            drawing.arrow(
                axes,
                (2.2 + 3.2 * device, 1.8),
                (2.2 + 3.2 * device, 1.2),
                device=device,
            )


@drawing.picture
def who_holds_what() -> None:
    """Eight places of a mesh: process 0 owns the two at each end. By process number they hold 0 1 4 5 6 7 2 3, by the sharding 0 to 7."""
    axes = drawing.canvas(21, 5.4, inches=8)
    rows = {
        "place in the mesh": None,
        "its process": None,
        "by process\nnumber": ORDER,
        "by the\nsharding": range(8),
    }
    for y, (name, numbers) in zip((0.3, 1.35, 2.7, 4.2), rows.items(), strict=True):
        axes.text(0, y, name, va="center")
        for place, device in enumerate(ORDER):
            if numbers:
                drawing.box(
                    axes,
                    5.2 + 1.95 * place,
                    y - 0.5,
                    f"{numbers[place]}",
                    device=device,
                    height=1,
                    size=12,
                )
            else:
                text = f"{device // 4}" if y > 1 else f"{place}"
                axes.text(6.1 + 1.95 * place, y, text, ha="center", va="center")


@drawing.picture
def accuracy_by_part(parts: np.ndarray) -> None:
    """Accuracy of the eight parts of the test set: about 87 % for the first two, which are in their place, and about 10 % for the others."""
    plt.figure(figsize=(7, 2))
    plt.bar(range(8), 100 * parts, color=drawing.DEVICE_COLOURS[0], width=0.7)
    plt.axhline(100 * parts.mean(), color=drawing.INK, linestyle=":")
    plt.text(
        7.6,
        100 * parts.mean() + 3,
        f"all together: {100 * parts.mean():.1f} %",
        ha="right",
    )
    ticks = [f"part {part},\nlabels {place}" for place, part in enumerate(ORDER)]
    plt.gca().set(ylabel="% right", ylim=(0, 100), xticks=range(8))
    plt.gca().set_xticklabels(ticks, fontsize=8)
